//! A gate before a cloud: it passes HTTP/1.1 requests on one by one, notes which process sent each, and holds one back
//! until the test lets it through.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// A request that came to the gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// The process that sent it.
    pub pid: u32,
    /// `GET`, `POST`, …
    pub method: String,
    /// Path and query.
    pub path: String,
    /// What the body says is the name of what is made; empty where it says nothing.
    pub name: String,
    /// Whether it has gone on to the cloud.
    pub went_on: bool,
}

impl Passed {
    /// Whether it may change something.
    #[must_use]
    pub fn changes(&self) -> bool {
        !matches!(self.method.as_str(), "GET" | "HEAD")
    }
}

#[derive(Default)]
struct State {
    passed: Vec<Passed>,
    /// Method and beginning of the path of what is held next, and of which processes.
    hold: Option<(String, String, u32)>,
    /// What is held now.
    held: Option<usize>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    cloud: String,
    /// The processes that may come.
    pids: Mutex<Vec<u32>>,
}

/// The gate; it stands as long as the test's process.
pub struct Gate {
    shared: Arc<Shared>,
    /// `http://127.0.0.1:<port>`.
    pub url: String,
}

impl Gate {
    /// Before the cloud at this `http://` URL.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn before(cloud: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let url = format!("http://{}", listener.local_addr()?);
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            cloud: cloud.trim_start_matches("http://").to_owned(),
            pids: Mutex::default(),
        });
        let gate = Self { shared: shared.clone(), url };
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let shared = shared.clone();
                std::thread::spawn(move || {
                    if let Err(error) = shared.pass(socket) {
                        eprintln!("gate: {error:#}");
                    }
                });
            }
        });
        Ok(gate)
    }

    /// Requests come from this process too.
    pub fn expect(&self, pid: u32) {
        self.shared.pids.lock().unwrap_or_else(PoisonError::into_inner).push(pid);
    }

    /// The next request of this process with this method, whose path begins like this, is held.
    pub fn hold(&self, pid: u32, method: &str, path: &str) {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.hold = Some((method.to_owned(), path.to_owned(), pid));
    }

    /// Waits until a request is held.
    ///
    /// # Errors
    /// When none comes in time.
    pub fn wait_held(&self, within: Duration) -> Result<Passed> {
        let deadline = Instant::now() + within;
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(held) = state.held.and_then(|at| state.passed.get(at)) {
                return Ok(held.clone());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            ensure!(!left.is_zero(), "no request like {:?} came; what came: {:#?}", state.hold, state.passed);
            (state, _) = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets through what is held.
    pub fn release(&self) {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner).held = None;
        self.shared.changed.notify_all();
    }

    /// All that came so far.
    #[must_use]
    pub fn passed(&self) -> Vec<Passed> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner).passed.clone()
    }
}

impl Shared {
    fn pass(&self, mut socket: TcpStream) -> Result<()> {
        socket.set_nodelay(true)?;
        let peer = socket.peer_addr()?;
        let mut reader = BufReader::new(socket.try_clone()?);
        let Some((head, body)) = request(&mut reader)? else { return Ok(()) };
        let mut words = head.split(' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let said: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        let pids = self.pids.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let passed = Passed {
            pid: sender(peer, &pids)?,
            method: method.to_owned(),
            path: path.to_owned(),
            name: said["name"].as_str().unwrap_or_default().to_owned(),
            went_on: false,
        };
        {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let at = state.passed.len();
            let hold = state.hold.as_ref().is_some_and(|(method, path, pid)| {
                *method == passed.method && passed.path.starts_with(path) && *pid == passed.pid
            });
            state.passed.push(passed);
            if hold {
                state.hold = None;
                state.held = Some(at);
                self.changed.notify_all();
                while state.held.is_some() {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
            if let Some(passed) = state.passed.get_mut(at) {
                passed.went_on = true;
            }
        }
        let mut cloud = TcpStream::connect(&self.cloud)?;
        let (first, headers) = head.split_once("\r\n").unwrap_or((head.as_str(), ""));
        write!(cloud, "{first}\r\nConnection: close\r\n{headers}")?;
        cloud.write_all(&body)?;
        let mut answer = Vec::new();
        cloud.read_to_end(&mut answer)?;
        socket.write_all(&answer)?;
        Ok(())
    }
}

/// Head and body of a request; nothing when the connection ends before one.
fn request(reader: &mut impl BufRead) -> Result<Option<(String, Vec<u8>)>> {
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let before = head.len();
        if reader.read_line(&mut head)? == 0 {
            return if head.is_empty() { Ok(None) } else { bail!("it ends in its head: {head}") };
        }
        let line = head.get(before..).unwrap_or_default();
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse()?;
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some((head, body)))
}

/// Which of these processes has the other end of a connection over IPv4 loopback.
fn sender(peer: SocketAddr, pids: &[u32]) -> Result<u32> {
    let port = format!(":{:04X}", peer.port());
    let table = std::fs::read_to_string("/proc/net/tcp")?;
    let inode = table
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .find(|fields| fields.get(1).is_some_and(|local| local.ends_with(&port)))
        .and_then(|fields| fields.get(9).map(|inode| format!("socket:[{inode}]")))
        .with_context(|| format!("{peer} is in no table"))?;
    for pid in pids {
        let Ok(files) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        if files.flatten().any(|file| std::fs::read_link(file.path()).is_ok_and(|to| to.as_os_str() == inode.as_str()))
        {
            return Ok(*pid);
        }
    }
    bail!("none of {pids:?} has {peer}")
}
