//! The kinds of stocks, and which of them accounts use by default.

use crate::stock::{AtomicStocks, RseqStocks, Stocks};
use std::fmt;
use std::sync::OnceLock;
use warmcore_percpu::{Backend, try_backend};

/// The environment variable that sets the default kind: `rseq` or `atomic`. `word`, the former name of `atomic`, is
/// accepted.
pub const VARIABLE: &str = "WARMCORE_BUDGET";

/// How the stocks of a tree are implemented. All accounts of a tree have the same kind.
///
/// A limit on licences must hold at each moment. For memory the faster default is exact enough:
///
/// ```
/// use warmcore_budget::{Account, StockKind};
///
/// let licences = Account::root("licences").limit(10).kind(StockKind::Atomic).build();
/// assert!(licences.kind().is_strict());
/// assert_eq!(licences.child("team").build().kind(), StockKind::Atomic);
///
/// let memory = Account::root("memory").limit(1 << 30).build();
/// println!("memory is counted by stocks of the kind {}", memory.kind());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StockKind {
    /// Restartable sections: a charge that the stock serves is two stores. A limit may be exceeded for a moment, by at
    /// most the capacity of the stocks.
    Rseq,
    /// One atomic word for each stock: a charge that the stock serves is a locked instruction. Only a forced charge
    /// exceeds a limit, and a charge that fits is refused only while other charges wait.
    Atomic,
}

impl StockKind {
    /// The name: `rseq` or `atomic`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rseq => RseqStocks::NAME,
            Self::Atomic => AtomicStocks::NAME,
        }
    }

    /// Whether only forced charges exceed a limit.
    pub fn is_strict(self) -> bool {
        match self {
            Self::Rseq => RseqStocks::STRICT,
            Self::Atomic => AtomicStocks::STRICT,
        }
    }
}

impl fmt::Display for StockKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// `WARMCORE_BUDGET` names a kind that this system does not support, or that does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StockKindError(String);

impl fmt::Display for StockKindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StockKindError {}

/// The kind of root accounts that are built without a call of `kind`: [`StockKind::Rseq`] where restartable sections
/// run, unless `WARMCORE_BUDGET` names a kind.
///
/// Returns an error only if `WARMCORE_BUDGET` names a kind that this system does not support or that does not
/// exist. A program that wants to report this error itself calls this function before it makes its first account.
pub fn try_default_kind() -> Result<StockKind, StockKindError> {
    static KIND: OnceLock<Result<StockKind, StockKindError>> = OnceLock::new();
    KIND.get_or_init(|| {
        choose(std::env::var_os(VARIABLE).map(|v| v.to_string_lossy().into_owned()).as_deref())
    })
    .clone()
}

/// The kind of root accounts that are built without a call of `kind`. Panics where [`try_default_kind`] returns an
/// error.
pub fn default_kind() -> StockKind {
    try_default_kind().unwrap_or_else(|error| panic!("{error}"))
}

fn choose(forced: Option<&str>) -> Result<StockKind, StockKindError> {
    match forced {
        None | Some("") => Ok(if why_no_rseq().is_none() { StockKind::Rseq } else { StockKind::Atomic }),
        Some("rseq") => why_no_rseq().map_or(Ok(StockKind::Rseq), |why| {
            Err(StockKindError(format!("{VARIABLE}=rseq, but {why}; unset it to fall back by itself")))
        }),
        Some("atomic" | "word") => Ok(StockKind::Atomic),
        Some(other) => {
            Err(StockKindError(format!("{VARIABLE}={other} names no kind; it takes rseq or atomic")))
        }
    }
}

/// Why restartable sections do not run on this system; `None` if they do.
fn why_no_rseq() -> Option<String> {
    match try_backend() {
        Ok(Backend::Rseq(_)) => None,
        Ok(other) => Some(format!("per-CPU data is on {other}")),
        Err(error) => Some(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forced_kind_is_taken_and_a_wrong_name_is_an_error() {
        assert_eq!(choose(Some("atomic")), Ok(StockKind::Atomic));
        assert_eq!(choose(Some("word")), Ok(StockKind::Atomic));
        assert_eq!(
            choose(Some("lock")).unwrap_err().to_string(),
            "WARMCORE_BUDGET=lock names no kind; it takes rseq or atomic"
        );
        match (choose(Some("rseq")), why_no_rseq()) {
            (Ok(kind), None) => assert_eq!((kind, choose(None)), (StockKind::Rseq, Ok(StockKind::Rseq))),
            (Err(error), Some(why)) => assert!(error.to_string().contains(&why)),
            other => panic!("{other:?}"),
        }
    }
}
