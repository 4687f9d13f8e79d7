//! Times: a histogram in bounded memory.

use crate::analysis::Quantiles;
use hdrhistogram::Histogram;

/// Times in nanoseconds, exact to one in a hundred. At most 30 KiB.
pub struct Times {
    histogram: Histogram<u64>,
    max: u64,
}

impl Times {
    pub fn new() -> Self {
        let histogram = Histogram::new(2).expect("two digits are allowed");
        Self { histogram, max: 0 }
    }

    #[inline]
    pub fn add(&mut self, ns: u64) {
        self.histogram.record(ns).expect("the histogram grows with its values");
        self.max = self.max.max(ns);
    }

    pub fn quantiles(&self) -> Quantiles {
        let at = |quantile| self.histogram.value_at_quantile(quantile).min(self.max);
        match self.histogram.len() {
            0 => Quantiles::default(),
            count => Quantiles { count, p50_ns: at(0.5), p99_ns: at(0.99), max_ns: self.max },
        }
    }
}
