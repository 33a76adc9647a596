//! The engine: what every component of a process shares, and the limits that hold for all of them.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use wasmtime::{Enabled, InstanceAllocationStrategy, PoolingAllocationConfig};

use crate::cache::Cache;
use crate::pure::{PLACES, Places};
use crate::slots::Slots;
use crate::v0_1;

/// How a component is compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compiler {
    /// By another process, which leaves the compiler's memory, and a hostile input's effect on it, outside this one.
    Child {
        /// The program.
        program: PathBuf,
        /// Its arguments. It must do what [`compile_main`](crate::compile::compile_main) does.
        args: Vec<String>,
    },
    /// In this process. For tests.
    InProcess,
}

impl Compiler {
    /// The running program with the argument `compile`.
    ///
    /// # Errors
    /// When the running program's path is not known.
    pub fn own_binary() -> std::io::Result<Self> {
        Ok(Compiler::Child { program: std::env::current_exe()?, args: vec!["compile".to_owned()] })
    }
}

/// What no module may exceed, whatever its manifest asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Maxima {
    /// Bytes of one linear memory.
    pub memory: u64,
    /// CPU time of the guest in one turn.
    pub cpu: Duration,
    /// Requests in one turn.
    pub requests: u32,
    /// How long after its beginning a turn may still send requests.
    pub turn: Duration,
}

impl Default for Maxima {
    fn default() -> Self {
        Self { memory: 64 << 20, cpu: Duration::from_secs(1), requests: 256, turn: Duration::from_secs(300) }
    }
}

/// Settings of an [`Engine`].
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Where compiled code is kept; `None`: nowhere. The key that authenticates it is kept in the directory above.
    pub cache_dir: Option<PathBuf>,
    /// How components are compiled.
    pub compiler: Compiler,
    /// Upper bounds.
    pub maxima: Maxima,
    /// Turns at the same time.
    pub slots: u32,
    /// Turns at the same time of one namespace.
    pub slots_per_tenant: u32,
    /// Threads that run guests.
    pub threads: usize,
    /// Directory for recordings of turns about objects that ask for it ([`crate::recording`]); `None`: none are made.
    pub recordings: Option<PathBuf>,
}

impl EngineConfig {
    /// Settings for a process that keeps compiled code in `cache_dir` and compiles with its own binary.
    ///
    /// # Errors
    /// When the running program's path is not known.
    pub fn new(cache_dir: PathBuf) -> std::io::Result<Self> {
        Ok(Self { cache_dir: Some(cache_dir), compiler: Compiler::own_binary()?, ..Self::in_process() })
    }

    /// Settings for tests: no cache, no child process.
    pub fn in_process() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            cache_dir: None,
            compiler: Compiler::InProcess,
            maxima: Maxima::default(),
            slots: 128,
            slots_per_tenant: 64,
            threads: cores.clamp(1, 4),
            recordings: None,
        }
    }
}

/// Why there is no engine.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// wasmtime refuses the settings, or the machine.
    #[error("the WebAssembly engine cannot be set up: {0}")]
    Wasmtime(String),
    /// The cache directory cannot be used.
    #[error("the directory for compiled code {} cannot be used: {source}", dir.display())]
    Cache {
        /// Which directory.
        dir: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// No threads.
    #[error("threads for provider components cannot be started: {0}")]
    Threads(std::io::Error),
}

/// Runs components. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) wasmtime: wasmtime::Engine,
    pub(crate) v0_1: wasmtime::component::Linker<crate::state::State>,
    pub(crate) config: EngineConfig,
    pub(crate) cache: Option<Cache>,
    pub(crate) slots: Slots,
    /// Places of calls outside turns.
    pub(crate) pure: Places,
    pub(crate) ticker: Arc<Ticker>,
    /// Guests run on threads of their own, so that a busy one never delays a watch.
    guests: Option<tokio::runtime::Runtime>,
}

impl Engine {
    /// Sets an engine up.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub fn new(mut config: EngineConfig) -> Result<Self, EngineError> {
        // Each place takes some 8 GiB of address space (not of memory), which a process may be denied (`ulimit -v`).
        let wasmtime = loop {
            match wasmtime_engine(Some(&config)) {
                Ok(engine) => break engine,
                Err(error) if config.slots <= 4 => return Err(EngineError::Wasmtime(format!("{error:#}"))),
                Err(error) => {
                    config.slots /= 2;
                    tracing::warn!(%error, turns = config.slots, "no address space for so many turns at a time: trying fewer");
                }
            }
        };
        let v0_1 = v0_1::linker(&wasmtime).map_err(|e| EngineError::Wasmtime(format!("{e:#}")))?;
        let cache = match &config.cache_dir {
            Some(dir) => {
                Some(Cache::open(dir, &wasmtime).map_err(|source| EngineError::Cache { dir: dir.clone(), source })?)
            }
            None => None,
        };
        let guests = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(config.threads)
            .thread_name("guest")
            .enable_time()
            .build()
            .map_err(EngineError::Threads)?;
        let ticker = Ticker::start(wasmtime.clone()).map_err(EngineError::Threads)?;
        let slots = Slots::new(config.slots, config.slots_per_tenant);
        let guests = Some(guests);
        Ok(Self {
            inner: Arc::new(Inner { wasmtime, v0_1, config, cache, slots, pure: Places::new(), ticker, guests }),
        })
    }
}

impl Inner {
    /// Where guests run.
    pub(crate) fn guests(&self) -> Option<&tokio::runtime::Handle> {
        self.guests.as_ref().map(tokio::runtime::Runtime::handle)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.ticker.stop();
        // The engine may be dropped inside another runtime, where waiting is not allowed.
        if let Some(guests) = self.guests.take() {
            guests.shutdown_background();
        }
    }
}

/// The wasmtime engine; without settings, one that only compiles (and reserves no address space for instances).
/// Both must compile to the same code.
pub(crate) fn wasmtime_engine(run: Option<&EngineConfig>) -> wasmtime::Result<wasmtime::Engine> {
    let mut config = wasmtime::Config::new();
    config.wasm_component_model(true).epoch_interruption(true).concurrency_support(false);
    config.wasm_memory64(false).relaxed_simd_deterministic(true);
    config.cranelift_nan_canonicalization(true);
    if let Some(settings) = run {
        // A turn that was given up frees its place a moment before its instance is gone.
        let slots = settings.slots.saturating_add(settings.slots / 4 + 2 + PLACES);
        let memory = usize::try_from(settings.maxima.memory).unwrap_or(usize::MAX);
        let mut pool = PoolingAllocationConfig::new();
        // A component of another language brings its runtime: more memories, instances and tables than one of Rust.
        pool.max_memories_per_component(3).max_core_instances_per_component(24).max_tables_per_component(24);
        pool.max_component_instance_size(1 << 20).max_core_instance_size(1 << 20);
        pool.total_component_instances(slots).total_core_instances(slots.saturating_mul(8));
        pool.total_memories(slots.saturating_mul(2)).total_tables(slots.saturating_mul(4)).total_stacks(slots);
        pool.max_memory_size(memory).table_elements(20_000);
        pool.linear_memory_keep_resident(256 << 10).table_keep_resident(16 << 10);
        pool.pagemap_scan(Enabled::Auto).max_unused_warm_slots(32);
        config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    }
    wasmtime::Engine::new(&config)
}

/// How long an epoch is: after so much time a running guest gives way to others and its budget is looked at.
const TICK: Duration = Duration::from_millis(5);
/// After so many ticks without a running guest the ticker sleeps.
const IDLE_TICKS: u32 = 40;

/// Advances the engine's epoch while guests run.
pub(crate) struct Ticker {
    running: AtomicUsize,
    asleep: AtomicBool,
    stopped: AtomicBool,
    thread: std::sync::OnceLock<std::thread::Thread>,
}

impl Ticker {
    fn start(engine: wasmtime::Engine) -> std::io::Result<Arc<Self>> {
        let ticker = Arc::new(Self {
            running: AtomicUsize::new(0),
            asleep: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            thread: std::sync::OnceLock::new(),
        });
        let own = ticker.clone();
        let handle = std::thread::Builder::new().name("guest-epoch".to_owned()).spawn(move || own.run(&engine))?;
        let _ = ticker.thread.set(handle.thread().clone());
        Ok(ticker)
    }

    fn run(&self, engine: &wasmtime::Engine) {
        let mut idle = 0;
        while !self.stopped.load(Ordering::SeqCst) {
            if self.running.load(Ordering::SeqCst) > 0 {
                idle = 0;
            } else {
                idle += 1;
            }
            if idle > IDLE_TICKS {
                self.asleep.store(true, Ordering::SeqCst);
                // Whoever begins to run after this store wakes us; whoever began before it is seen here.
                if self.running.load(Ordering::SeqCst) == 0 && !self.stopped.load(Ordering::SeqCst) {
                    std::thread::park();
                }
                self.asleep.store(false, Ordering::SeqCst);
                idle = 0;
            }
            std::thread::sleep(TICK);
            engine.increment_epoch();
        }
    }

    /// A guest runs until the guard is dropped.
    pub(crate) fn running(&self) -> Running<'_> {
        self.running.fetch_add(1, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) {
            self.wake();
        }
        Running(self)
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.wake();
    }
}

/// See [`Ticker::running`].
pub(crate) struct Running<'a>(&'a Ticker);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}
