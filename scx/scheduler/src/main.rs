//! `scx_warm`: loads the sched_ext scheduler, changes its settings while it runs, and prints its counts.
//!
//! The BPF program under `src/bpf` schedules; this program only fills its tables, and then waits. See README.md.

mod check;
mod control;
mod counts;
mod replay;
mod scheduler;
mod settings;
mod tables;
mod topology;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use control::Control;
use replay::Replayed;
use scheduler::{Exit, Scheduler};
use serde_json::json;
use settings::Assignment;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use topology::Shards;
use warmcore_topo::Topology;

/// How soon the loader sees that the kernel ended the scheduler.
const EXIT_POLL: Duration = Duration::from_millis(200);

#[derive(Debug, Parser)]
#[command(version, about = "A sched_ext scheduler that keeps tasks on the CPU whose caches have their data")]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Start with this value of a setting; may be repeated
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = parse_setting)]
    set: Vec<Assignment>,
    /// Print every setting with its default, unit and effect
    #[arg(long)]
    list: bool,
    /// Print the counts of each period of this many seconds to stdout
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    stats: Option<u64>,
    /// Print these counts as JSON, one object a line
    #[arg(long)]
    json: bool,
    /// Serve Prometheus metrics over HTTP at this address
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,
    /// Split LLCs of more CPUs than this into shards with a queue each
    #[arg(long, value_name = "CPUS", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    shard_cpus: u32,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check what the kernel must have; exit 1 if something is missing
    Check,
    /// Change a setting of the running instance
    Set {
        /// The setting and its new value
        #[arg(value_name = "NAME=VALUE")]
        assignment: String,
    },
}

/// clap prints an error without its causes, so they are joined here.
fn parse_setting(text: &str) -> Result<Assignment, String> {
    settings::parse(text).map_err(|e| format!("{e:#}"))
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(code) => code,
        Err(e) => {
            eprintln!("scx_warm: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<ExitCode> {
    if args.list {
        print!("{}", settings::list());
        return Ok(ExitCode::SUCCESS);
    }
    match &args.command {
        Some(Command::Check) => Ok(print_checks()),
        Some(Command::Set { assignment }) => control::send_set(assignment).map(|()| ExitCode::SUCCESS),
        None => schedule(&args),
    }
}

fn print_checks() -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for check in check::all() {
        match check.outcome {
            Ok(found) => println!("ok    {}: {found}", check.what),
            Err(e) => {
                println!("FAIL  {}: {e:#}", check.what);
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}

/// Schedules until a signal or the kernel ends it. Starts over if a CPU came online whose caches are not known.
fn schedule(args: &Args) -> Result<ExitCode> {
    let (signal, on_signal) = UnixStream::pair()?;
    for number in [SIGINT, SIGTERM] {
        signal_hook::low_level::pipe::register(number, on_signal.try_clone()?)?;
    }
    let metrics = args.metrics.map(|addr| -> Result<TcpListener> {
        let socket =
            TcpListener::bind(addr).with_context(|| format!("--metrics: cannot listen at {addr}"))?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    });
    let metrics = metrics.transpose()?;
    let (mut set, replayed) = (args.set.clone(), Replayed::default());
    loop {
        check::require()?;
        let topo = Topology::this_machine().context("the CPUs and caches of this machine cannot be read")?;
        let shards = Shards::new(&topo, args.shard_cpus)?;
        let mut object = MaybeUninit::uninit();
        let mut scheduler = Scheduler::start(&mut object, &shards, &set, replayed.clone())?;
        let control = Control::listen()?;
        eprintln!("scx_warm: enabled");
        let was_ended = wait(args, &mut scheduler, &control, metrics.as_ref(), &signal)?;
        let exit = scheduler.stop()?;
        let counts = scheduler.counts()?;
        scheduler.replay().go_on();
        if exit.wants_restart {
            // The settings that were changed meanwhile go on.
            let values = scheduler.settings().values();
            set = values.into_iter().enumerate().map(|(index, value)| Assignment { index, value }).collect();
            continue;
        }
        print_exit(&counts, &exit, &replayed);
        return Ok(if was_ended { ExitCode::FAILURE } else { ExitCode::SUCCESS });
    }
}

/// Waits for a signal (false) or the kernel's end of the scheduler (true), and serves the sockets meanwhile.
fn wait(
    args: &Args,
    scheduler: &mut Scheduler<'_>,
    control: &Control,
    metrics: Option<&TcpListener>,
    signal: &UnixStream,
) -> Result<bool> {
    let period = args.stats.map(Duration::from_secs);
    let (mut printed_at, mut printed) = (Instant::now(), scheduler.counts()?);
    let mut fds = vec![signal.as_raw_fd(), control.socket().as_raw_fd()];
    fds.extend(metrics.map(AsRawFd::as_raw_fd));
    loop {
        let is_ready = poll(&fds, EXIT_POLL)?;
        if is_ready[0] {
            return Ok(false);
        }
        if scheduler.exit().is_some() {
            return Ok(true);
        }
        scheduler.replay().go_on();
        if is_ready[1] {
            control.serve(|assignment| scheduler.settings().set(assignment));
        }
        if let Some(socket) = metrics.filter(|_| is_ready[2]) {
            let (counts, values) = (scheduler.counts()?, scheduler.settings().values());
            control::serve_metrics(socket, || counts::prometheus(&counts, &values));
        }
        if period.is_some_and(|p| printed_at.elapsed() >= p) {
            let counts = scheduler.counts()?;
            let since = counts::since(&counts, &printed);
            match args.json {
                true => println!("{}", counts::json(&since)),
                false => println!("{}", counts::line(&since)),
            }
            (printed_at, printed) = (Instant::now(), counts);
        }
    }
}

/// Waits until one of the descriptors is readable, and returns which are.
fn poll(fds: &[RawFd], timeout: Duration) -> Result<Vec<bool>> {
    let mut polled: Vec<_> =
        fds.iter().map(|fd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 }).collect();
    // SAFETY: the pointer and the length are those of one Vec.
    let n =
        unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout.as_millis() as i32) };
    let error = std::io::Error::last_os_error();
    if n < 0 && error.kind() != std::io::ErrorKind::Interrupted {
        return Err(error).context("poll failed");
    }
    Ok(polled.iter().map(|p| n > 0 && p.revents != 0).collect())
}

/// Prints the counts and the reason of the end as one line of JSON, and an unwanted end also to stderr.
fn print_exit(counts: &[u64], exit: &Exit, replayed: &Replayed) {
    let message = if exit.message.is_empty() { &exit.reason } else { &exit.message };
    let (counts, exit_json) = (counts::json(counts), json!({"kind": exit.kind(), "message": message}));
    // serde_json sorts keys; readers look for the scheduler first.
    let decisions = replayed.json();
    println!(r#"{{"scheduler":"warm","counts":{counts},"decisions":{decisions},"exit":{exit_json}}}"#);
    if exit.kind() != "unregistered" {
        eprintln!("scx_warm: the kernel ended the scheduler: {} ({message})", exit.reason);
    }
}
