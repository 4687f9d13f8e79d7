//! The text above and below the boxes.
//!
//! The text above describes the machine and the properties that are the same everywhere in it. The text below has the
//! meaning of the letters in the boxes, the limits of this process, and the parts of the machine that no box shows.

use super::{Cores, Painter, alike};
use warmcore_report::machine_boxes::{counts, some};
use warmcore_topo::Llc;
use warmcore_types::CpuSet;

/// With more nodes than this, only the range of their distances is shown.
const DISTANCES_MAX: usize = 8;

impl Painter<'_> {
    pub(super) fn heading(&self, whence: &str) -> Vec<String> {
        let t = self.t;
        let cores_of =
            |llc: &Llc| t.cores.iter().filter(|core| !core.cpus.intersection(&llc.cpus).is_empty()).count();
        let mut counts = counts(t);
        if let Some(n) = alike(t.llcs.iter().map(cores_of)).filter(|_| t.llcs.len() > 1) {
            counts[2] += &format!(" of {}", some(n, "core"));
        }
        let cores = match self.core_caches.as_deref() {
            Some(caches) => format!("each core: {caches}"),
            None => "the cores' caches are not all alike".into(),
        };
        let llcs = self
            .llc_cache
            .iter()
            .filter(|_| !self.llcs_are_sized())
            .map(|cache| format!("each llc: {cache}"));
        let caches: Vec<String> = std::iter::once(cores)
            .chain(llcs)
            .chain([format!("lines: {} bytes", t.line_bytes)])
            .filter(|part| !part.ends_with(": "))
            .collect();
        vec![
            format!("{} ({whence})", t.model.as_deref().unwrap_or("A processor of unknown name")),
            counts.join(", "),
            caches.join(" · "),
        ]
    }

    pub(super) fn legend(&self, cores: Cores) -> Vec<String> {
        let smt = self.t.cores.iter().any(|c| c.cpus.len() > 1);
        let form = match cores {
            Cores::Boxed if smt => Some("The innermost boxes are cores, the numbers in them CPUs.".into()),
            Cores::Columns | Cores::Folded if smt => {
                Some("Each column is a core; its CPUs stand below each other.".into())
            }
            _ => None,
        };
        let mark = |(letter, cpus, means): &(char, CpuSet, &str)| {
            format!("{letter}  {means}: {} ({cpus})", some(cpus.len(), "CPU"))
        };
        form.into_iter().chain(self.marks.iter().map(mark)).collect()
    }

    /// What limits this process, and nodes that no box shows.
    pub(super) fn facts(&self) -> Vec<String> {
        let mut facts = Vec::new();
        if let Some(quota) = &self.t.quota {
            let (cpus, file) = ((quota.cpus * 100.0).round() / 100.0, quota.file.display());
            facts.push(format!("quota: the time of {cpus} CPUs ({file}); threads beyond it are stopped"));
        }
        let bare = self.t.nodes.iter().filter(|n| n.cpus.is_empty());
        facts.extend(bare.map(|n| format!("node {} has memory and no CPU", n.id.0)));
        facts
    }

    /// The firmware's distances between nodes.
    pub(super) fn distances(&self) -> Vec<String> {
        let nodes = &self.t.nodes;
        let all = || nodes.iter().flat_map(|n| n.distances.iter().map(|(_, d)| *d));
        let (Some(lo), Some(hi)) = (all().min(), all().max()) else { return Vec::new() };
        match nodes.len() {
            0 | 1 => Vec::new(),
            n if n > DISTANCES_MAX => vec![format!("node distances: {lo} to {hi}")],
            _ => {
                let head: String = nodes.iter().map(|n| format!("{:>5}", n.id.0)).collect();
                let row = |n: &warmcore_topo::Node| {
                    let to: String = n.distances.iter().map(|(_, d)| format!("{d:>5}")).collect();
                    format!("  node {:>7}{to}", n.id.0)
                };
                std::iter::once(format!("node distances{head}")).chain(nodes.iter().map(row)).collect()
            }
        }
    }
}
