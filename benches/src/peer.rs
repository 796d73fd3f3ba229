//! A Python process that runs the same operation with another library, for comparison in one sitting.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// The program that the process runs.
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/peer.py");

/// What another library does for the same result: Python statements that make the operands, and an expression.
/// `torch` or `numpy` are imported; numpy has `random(rows, cols)` in f32.
#[derive(Debug, Clone)]
pub struct Peer {
    /// The library, by which processes are told apart.
    pub library: &'static str,
    /// Statements, run once.
    pub setup: String,
    /// The expression that is timed.
    pub call: String,
}

impl Peer {
    /// An operation of PyTorch.
    pub fn torch(setup: String, call: String) -> Self {
        Self { library: "torch", setup, call }
    }

    /// An operation of numpy.
    pub fn numpy(setup: String, call: String) -> Self {
        Self { library: "numpy", setup, call }
    }
}

#[derive(Serialize)]
struct Request<'a> {
    setup: Option<&'a str>,
    call: &'a str,
    runs: usize,
}

#[derive(Deserialize)]
struct Reply {
    seconds: Vec<f64>,
    error: Option<String>,
}

/// A running peer process, ended when dropped.
pub(crate) struct Process {
    child: Child,
    requests: ChildStdin,
    replies: BufReader<ChildStdout>,
    peer: Peer,
    set_up: bool,
}

impl Process {
    /// Starts Python for one operation with `threads` threads.
    pub(crate) fn start(python: &Path, threads: usize, peer: Peer) -> Result<Self> {
        let mut command = Command::new(python);
        command.arg(PROGRAM).arg(peer.library).stdin(Stdio::piped()).stdout(Stdio::piped());
        for variable in ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"] {
            command.env(variable, threads.to_string());
        }
        // These would make OpenBLAS choose kernels for another CPU than this one.
        command.env_remove("OPENBLAS_CORETYPE").env_remove("OPENBLAS_L2_SIZE");
        let mut child = command.spawn().with_context(|| format!("cannot start {}", python.display()))?;
        let requests = child.stdin.take().context("stdin was piped")?;
        let replies = BufReader::new(child.stdout.take().context("stdout was piped")?);
        Ok(Self { child, requests, replies, peer, set_up: false })
    }

    pub(crate) fn library(&self) -> &'static str {
        self.peer.library
    }

    /// Seconds of each of `runs` runs.
    pub(crate) fn measure(&mut self, runs: usize) -> Result<Vec<f64>> {
        let setup = (!self.set_up).then_some(self.peer.setup.as_str());
        self.set_up = true;
        let request = serde_json::to_string(&Request { setup, call: &self.peer.call, runs })?;
        writeln!(self.requests, "{request}").context("the peer process has ended")?;
        let mut line = String::new();
        self.replies.read_line(&mut line)?;
        let reply: Reply = serde_json::from_str(&line)
            .with_context(|| format!("the peer {} answered {line:?}", self.peer.library))?;
        if let Some(error) = reply.error {
            bail!("the peer {} failed at {:?}: {error}", self.peer.library, self.peer.call);
        }
        Ok(reply.seconds)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Ending it is all that matters here; a process that has already ended refuses both.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
