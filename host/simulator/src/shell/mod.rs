//! A small shell for the command lines of boot data on a simulated machine.
//!
//! It knows: simple commands with quoting, `$NAME`, `${NAME}`, `$?`, `$(…)`, assignments, comments; `&&`, `||`, `;`, newlines, pipes;
//! `>`, `>>`, `<`, `2>`, `2>&1`; the commands `[`, `basename`, `cat`, `cd`, `chmod`, `chown`, `cp`, `dirname`, `echo`, `exit`, `export`, `false`, `grep` (fixed text),
//! `hostname`, `ls`, `mkdir`, `mv`, `printf` (`%s`, `%d`), `rm`, `sh`/`bash` (`-c` or a file), `sleep`, `test`, `touch`, `true`; and what its [`Programs`] offer.
//!
//! There is no operating system below it, so a program that it does not know (`systemctl`, `modprobe`, …) is *taken as done*: status 0 and a
//! line in the console that says so. Syntax it does not know (`if`, `for`, functions, here-documents, subshells, `&`) fails with status 2 and a
//! line that names it.

mod commands;
mod parse;

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::files::Files;
use parse::{Connector, Mode, Piece, Redirect, Simple, Word};

/// At most this many bytes of one command's output are kept.
const MAX_OUTPUT: usize = 256 << 10;
/// Scripts that run scripts nest at most this deep.
const MAX_DEPTH: usize = 16;

/// Programs beyond the shell's own: the stand-in for kubeadm.
#[async_trait::async_trait]
pub trait Programs: Send + Sync {
    /// Runs a program; none where there is no program of that name.
    async fn run(&self, argv: &[String]) -> Option<Finished>;
}

/// How a program ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Finished {
    /// Exit status; 0 is success.
    pub status: i32,
    /// Standard output.
    pub out: Vec<u8>,
    /// Standard error.
    pub err: Vec<u8>,
}

impl Finished {
    fn status(status: i32) -> Self {
        Finished { status, ..Finished::default() }
    }

    fn fail(status: i32, message: impl std::fmt::Display) -> Self {
        Finished { status, out: Vec::new(), err: format!("{message}\n").into_bytes() }
    }

    fn out(text: impl Into<Vec<u8>>) -> Self {
        Finished { status: 0, out: text.into(), err: Vec::new() }
    }
}

/// A shell of one machine. Variables and the working directory stay from one [`Shell::run`] to the next.
pub struct Shell {
    files: Arc<dyn Files>,
    programs: Arc<dyn Programs>,
    variables: HashMap<String, String>,
    directory: String,
    last: i32,
    exited: Option<i32>,
    depth: usize,
}

type Running<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

impl Shell {
    /// A shell on these files, with these programs.
    pub fn new(files: Arc<dyn Files>, programs: Arc<dyn Programs>, hostname: &str) -> Self {
        let variables = [("HOME", "/root"), ("PATH", "/usr/local/bin:/usr/bin:/bin"), ("HOSTNAME", hostname)];
        Shell {
            files,
            programs,
            variables: variables.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            directory: "/".to_owned(),
            last: 0,
            exited: None,
            depth: 0,
        }
    }

    /// Runs one command line, which may hold several lines. The status is the last command's.
    pub async fn run(&mut self, line: &str) -> Finished {
        self.exited = None;
        self.script(line, &[]).await
    }

    fn script<'a>(&'a mut self, text: &'a str, input: &'a [u8]) -> Running<'a, Finished> {
        Box::pin(async move {
            let list = match parse::parse(text) {
                Ok(list) => list,
                Err(problem) => return Finished::fail(2, format!("sh: {problem}")),
            };
            if self.depth >= MAX_DEPTH {
                return Finished::fail(2, "sh: scripts are nested too deeply");
            }
            self.depth += 1;
            let mut total = Finished::default();
            for (connector, pipeline) in list {
                let skip = match connector {
                    Connector::Always => false,
                    Connector::And => self.last != 0,
                    Connector::Or => self.last == 0,
                };
                if skip {
                    continue;
                }
                let mut piped = input.to_vec();
                let commands = pipeline.len();
                for (index, command) in pipeline.iter().enumerate() {
                    let mut finished = self.simple(command, &piped).await;
                    extend(&mut total.err, &finished.err);
                    self.last = finished.status;
                    if index + 1 < commands {
                        piped = std::mem::take(&mut finished.out);
                    } else {
                        extend(&mut total.out, &finished.out);
                    }
                }
                if self.exited.is_some() {
                    break;
                }
            }
            self.depth -= 1;
            total.status = self.exited.unwrap_or(self.last);
            total
        })
    }

    async fn simple(&mut self, command: &Simple, input: &[u8]) -> Finished {
        let mut assignments = Vec::new();
        for (name, word) in &command.assignments {
            assignments.push((name.clone(), self.expand(word).await.join(" ")));
        }
        let mut argv = Vec::new();
        for word in &command.words {
            argv.extend(self.expand(word).await);
        }
        if argv.is_empty() {
            self.variables.extend(assignments);
            let finished = Finished::status(if command.words.is_empty() { 0 } else { self.last });
            return self.redirect(command, finished).await;
        }
        // `NAME=value command`: set for this command only.
        let before: Vec<_> =
            assignments.iter().map(|(name, _)| (name.clone(), self.variables.get(name).cloned())).collect();
        self.variables.extend(assignments);
        let finished = match self.input(command, input).await {
            Ok(input) => self.execute(&argv, &input).await,
            Err(finished) => finished,
        };
        for (name, value) in before {
            match value {
                Some(value) => self.variables.insert(name, value),
                None => self.variables.remove(&name),
            };
        }
        self.redirect(command, finished).await
    }

    async fn input(&mut self, command: &Simple, piped: &[u8]) -> Result<Vec<u8>, Finished> {
        for redirect in &command.redirects {
            if let Redirect::In(word) = redirect {
                let path = self.expand(word).await.concat();
                if path == "/dev/null" {
                    return Ok(Vec::new());
                }
                return self
                    .files
                    .read(&self.path(&path))
                    .map_err(|e| Finished::fail(1, format!("sh: cannot open {e}")));
            }
        }
        Ok(piped.to_vec())
    }

    async fn redirect(&mut self, command: &Simple, mut finished: Finished) -> Finished {
        // From left to right, as a shell sets its descriptors: where each stream goes in the end.
        let mut out = Target::Out;
        let mut err = Target::Err;
        for redirect in &command.redirects {
            match redirect {
                Redirect::In(_) => {}
                Redirect::ErrToOut => err = out.clone(),
                Redirect::OutToErr => out = err.clone(),
                Redirect::Out(mode, word) | Redirect::Err(mode, word) | Redirect::Both(mode, word) => {
                    let path = self.expand(word).await.concat();
                    let target = match path.as_str() {
                        "/dev/null" => Target::Nowhere,
                        "/dev/stdout" => Target::Out,
                        "/dev/stderr" | "/dev/console" | "/dev/kmsg" | "/dev/tty" => Target::Err,
                        _ => {
                            let path = self.path(&path);
                            if let Err(error) = self.files.write(&path, b"", *mode == Mode::Append) {
                                return Finished::fail(2, format!("sh: cannot create {error}"));
                            }
                            Target::File(path)
                        }
                    };
                    match redirect {
                        Redirect::Out(..) => out = target,
                        Redirect::Err(..) => err = target,
                        _ => {
                            out = target.clone();
                            err = target;
                        }
                    }
                }
            }
        }
        let streams = [(out, std::mem::take(&mut finished.out)), (err, std::mem::take(&mut finished.err))];
        for (target, bytes) in streams {
            match target {
                Target::Out => extend(&mut finished.out, &bytes),
                Target::Err => extend(&mut finished.err, &bytes),
                Target::Nowhere => {}
                Target::File(path) => {
                    if let Err(error) = self.files.write(&path, &bytes, true) {
                        extend(&mut finished.err, format!("sh: {error}\n").as_bytes());
                        finished.status = 1;
                    }
                }
            }
        }
        finished
    }

    /// A word as the arguments it becomes: unquoted expansions are split at blanks.
    async fn expand(&mut self, word: &Word) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        let mut open = false;
        for piece in word {
            let (text, quoted) = match piece {
                Piece::Text(text) => (text.clone(), true),
                Piece::Variable(name, quoted) => (self.variable(name), *quoted),
                Piece::Command(script, quoted) => {
                    let finished = self.script(script, &[]).await;
                    let text = String::from_utf8_lossy(&finished.out).trim_end_matches('\n').to_owned();
                    (text, *quoted)
                }
            };
            if quoted {
                if open && let Some(last) = words.last_mut() {
                    last.push_str(&text);
                } else {
                    words.push(text);
                }
                open = true;
                continue;
            }
            if text.starts_with([' ', '\t', '\n']) {
                open = false;
            }
            for part in text.split_whitespace() {
                if open && let Some(last) = words.last_mut() {
                    last.push_str(part);
                } else {
                    words.push(part.to_owned());
                }
                open = false;
            }
            open = !text.is_empty() && !text.ends_with([' ', '\t', '\n']);
        }
        words
    }

    fn variable(&self, name: &str) -> String {
        if name == "?" {
            return self.last.to_string();
        }
        self.variables.get(name).cloned().unwrap_or_default()
    }

    /// A path of a command, from the working directory.
    fn path(&self, path: &str) -> String {
        if path.starts_with('/') { path.to_owned() } else { format!("{}/{path}", self.directory) }
    }
}

#[derive(Clone)]
enum Target {
    Out,
    Err,
    Nowhere,
    File(String),
}

fn extend(into: &mut Vec<u8>, bytes: &[u8]) {
    let room = MAX_OUTPUT.saturating_sub(into.len());
    into.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
}

#[cfg(test)]
mod tests;
