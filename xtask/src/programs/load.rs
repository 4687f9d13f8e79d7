//! The load generators, which Debian has, and what they print.

use anyhow::{Context, bail, ensure};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Connections of a load.
pub const CONNECTIONS: &str = "32";

/// A load generator, with the path that it asks for.
#[derive(Debug, Clone, Copy)]
pub enum Load {
    /// `redis-benchmark`: SET and then GET.
    Redis,
    Wrk(&'static str),
    H2loadOverHttp1(&'static str),
    /// Sends gRPC requests for the service `up`.
    H2loadGrpc(&'static str),
}

/// The requests of a slice.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Loaded {
    pub per_second: f64,
    pub p99_ns: f64,
}

impl Load {
    /// The program, and Debian's package that has it.
    pub fn tool(self) -> [&'static str; 2] {
        match self {
            Self::Redis => ["redis-benchmark", "redis-tools"],
            Self::Wrk(_) => ["wrk", "wrk"],
            Self::H2loadOverHttp1(_) | Self::H2loadGrpc(_) => ["h2load", "nghttp2-client"],
        }
    }

    /// Sends requests to a port of 127.0.0.1 for about this time, each as soon as the answer before has come; `redis-benchmark` sends so
    /// many that they take it at the rate `expected`. Returns an error if a request fails.
    pub fn run(self, port: u16, time: Duration, expected: f64, scratch: &Path) -> anyhow::Result<Loaded> {
        self.run_tool(port, time, expected, false, scratch)
    }

    /// Sends so many requests per second, whether or not answers have come: [`paced`](super::paced), and of gRPC `h2load`.
    pub fn run_paced(
        self,
        port: u16,
        time: Duration,
        per_second: f64,
        scratch: &Path,
    ) -> anyhow::Result<Loaded> {
        match self {
            Self::H2loadGrpc(_) => self.run_tool(port, time, per_second, true, scratch),
            _ => super::paced::run(self, port, time, per_second),
        }
    }

    fn run_tool(
        self,
        port: u16,
        time: Duration,
        expected: f64,
        is_paced: bool,
        scratch: &Path,
    ) -> anyhow::Result<Loaded> {
        let seconds = time.as_secs().max(1).to_string();
        let url = |path: &str| format!("http://127.0.0.1:{port}{path}");
        let log = scratch.join("requests.log");
        let mut command = Command::new(self.tool()[0]);
        match self {
            Self::Redis => {
                let requests = (expected * time.as_secs_f64() / 2.0).max(1000.0) as u64;
                command.args(["-h", "127.0.0.1", "-t", "set,get", "-d", "64", "--csv", "-c", CONNECTIONS]);
                command.arg("-p").arg(port.to_string()).arg("-n").arg(requests.to_string());
            }
            Self::Wrk(path) => {
                command.args(["-t", "1", "-c", CONNECTIONS, "--latency", "-d", &seconds]).arg(url(path));
            }
            Self::H2loadOverHttp1(path) => {
                command.args(["--h1", "-t", "1", "-c", CONNECTIONS, "-D", &seconds]).arg(url(path));
            }
            Self::H2loadGrpc(path) => {
                // A message of gRPC: not compressed, four bytes of length, and field 1 of the request.
                let message = scratch.join("request.grpc");
                std::fs::write(&message, b"\0\0\0\0\x04\x0a\x02up")?;
                command.args(["-t", "1", "-c", "8", "-m", "8", "-D", &seconds, "-d"]).arg(message);
                if is_paced {
                    command.arg("--rps").arg((expected / 8.0).ceil().to_string());
                }
                command.args(["-H", "content-type: application/grpc", "-H", "te: trailers"]).arg(url(path));
            }
        }
        let is_h2load = self.tool()[0] == "h2load";
        if is_h2load {
            let _ = std::fs::remove_file(&log);
            command.arg("--log-file").arg(&log);
        }
        let output = command.stdin(Stdio::null()).output().context("can't run the load generator")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let tool = self.tool()[0];
        let said = || format!("{tool} printed:\n{text}{}", String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "{}", said());
        let loaded = match self {
            Self::Redis => redis(&text),
            Self::Wrk(_) => wrk(&text),
            _ => h2load(&text).and_then(|per_second| {
                Ok(Loaded { per_second, p99_ns: p99_of_log(&std::fs::read_to_string(&log)?)? })
            }),
        };
        loaded.with_context(said)
    }
}

/// Fails if a load generator is missing, and names the command that installs it.
pub fn require(tools: &[[&str; 2]]) -> anyhow::Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has = |tool: &str| std::env::split_paths(&path).any(|folder| folder.join(tool).is_file());
    let mut missing: Vec<&str> = tools.iter().filter(|[tool, _]| !has(tool)).map(|tool| tool[1]).collect();
    missing.sort_unstable();
    missing.dedup();
    ensure!(missing.is_empty(), "load generators are missing: `sudo apt-get install {}`", missing.join(" "));
    Ok(())
}

/// Both tests of `redis-benchmark --csv`: their requests over their time, and the higher p99.
fn redis(text: &str) -> anyhow::Result<Loaded> {
    let tests = ["SET", "GET"].map(|test| {
        let start = format!("\"{test}\",");
        let line = text.lines().find(|line| line.starts_with(&start)).context("a test is missing")?;
        let numbers: Vec<f64> = line.split(',').filter_map(|it| it.trim_matches('"').parse().ok()).collect();
        // requests/s, then in ms: mean, min, p50, p95, p99, max.
        let [per_second, _, _, _, _, p99_ms, _] = numbers[..] else { bail!("columns of {line}") };
        Ok((per_second, p99_ms))
    });
    let [set, get] = tests;
    let (set, get) = (set?, get?);
    Ok(Loaded { per_second: 2.0 / (1.0 / set.0 + 1.0 / get.0), p99_ns: set.1.max(get.1) * 1e6 })
}

fn wrk(text: &str) -> anyhow::Result<Loaded> {
    for bad in ["Socket errors", "Non-2xx"] {
        ensure!(!text.contains(bad), "requests failed");
    }
    let value = |name: &str| {
        let line = text.lines().map(str::trim).find_map(|line| line.strip_prefix(name));
        line.map(str::trim).with_context(|| format!("no {name}"))
    };
    let per_second: f64 = value("Requests/sec:")?.parse()?;
    ensure!(per_second > 0.0, "no request was answered");
    Ok(Loaded { per_second, p99_ns: nanoseconds(value("99%")?)? })
}

/// `1.25ms` in ns.
fn nanoseconds(text: &str) -> anyhow::Result<f64> {
    let at = text.find(|c: char| c.is_ascii_alphabetic()).context("a time without a unit")?;
    let (number, unit) = text.split_at(at);
    let scale = match unit {
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "m" => 60e9,
        _ => bail!("the unit of {text}"),
    };
    Ok(number.parse::<f64>()? * scale)
}

/// The requests per second.
fn h2load(text: &str) -> anyhow::Result<f64> {
    let line = |start: &str| {
        text.lines().find_map(|line| line.strip_prefix(start)).with_context(|| format!("no line {start}"))
    };
    let counts = line("requests: ")?;
    for bad in ["failed", "errored", "timeout"] {
        let count =
            counts.split(", ").find_map(|part| part.strip_suffix(bad)).context("a count is missing")?;
        ensure!(count.trim() == "0", "requests failed");
    }
    let codes = line("status codes: ")?;
    ensure!(["0 3xx", "0 4xx", "0 5xx"].iter().all(|none| codes.contains(none)), "status codes");
    let finished = line("finished in ")?;
    let rate = finished.split(", ").find_map(|part| part.strip_suffix(" req/s")).context("no rate")?;
    let rate: f64 = rate.parse()?;
    ensure!(rate > 0.0, "no request was answered");
    Ok(rate)
}

/// The 99th percentile of the times of requests, the third column in µs.
fn p99_of_log(log: &str) -> anyhow::Result<f64> {
    let times = log.lines().filter_map(|line| line.split('\t').nth(2)?.parse::<u64>().ok());
    let mut times: Vec<u64> = times.collect();
    ensure!(!times.is_empty(), "the log has no request");
    times.sort_unstable();
    Ok(times[(times.len() - 1) * 99 / 100] as f64 * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_redis_benchmark_is_that_of_both_tests() {
        let header = r#""test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms""#;
        let text = format!(
            "{header}\n\"SET\",\"10000.00\",\"0.4\",\"0.1\",\"0.3\",\"0.5\",\"0.9\",\"2.0\"\n\
             \"GET\",\"30000.00\",\"0.4\",\"0.1\",\"0.3\",\"0.5\",\"0.7\",\"2.0\"\n"
        );
        let Loaded { per_second, p99_ns } = redis(&text).unwrap();
        assert!((per_second - 15_000.0).abs() < 1e-6 && (p99_ns - 900_000.0).abs() < 1e-6);
        assert!(redis(header).is_err());
    }

    #[test]
    fn a_request_that_failed_is_an_error() {
        let good =
            "    Latency Distribution\n     50%    1.00ms\n     99%    2.50ms\nRequests/sec:   1234.50\n";
        assert_eq!(wrk(good).unwrap(), Loaded { per_second: 1234.5, p99_ns: 2.5e6 });
        assert!(wrk(&format!("{good}  Socket errors: connect 0, read 3, write 0, timeout 0\n")).is_err());
        assert!(wrk(&format!("{good}  Non-2xx or 3xx responses: 5\n")).is_err());

        let good = "finished in 10.00s, 2000.50 req/s, 1.00MB/s\n\
                    requests: 20005 total, 20005 started, 20005 done, 20005 succeeded, 0 failed, 0 errored, 0 timeout\n\
                    status codes: 20005 2xx, 0 3xx, 0 4xx, 0 5xx\n";
        assert!((h2load(good).unwrap() - 2000.5).abs() < 1e-9);
        assert!(h2load(&good.replace("0 errored", "1 errored")).is_err());
        assert!(h2load(&good.replace("0 5xx", "7 5xx")).is_err());
    }

    #[test]
    fn one_request_of_a_hundred_takes_longer_than_the_p99() {
        let log: String = (1..=200).rev().map(|time| format!("1595\t200\t{time}\n")).collect();
        assert!((p99_of_log(&log).unwrap() - 198_000.0).abs() < 1e-6);
        assert!(p99_of_log("").is_err());
    }
}
