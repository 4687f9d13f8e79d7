use super::super::pairs::pairs;
use super::*;
use warmcore_topo::{MACHINES, machines};

const KVM: Option<&str> = Some("KVM");

/// A machine of one socket: `llcs` last-level caches of `cores` cores each, with `smt` CPUs a core.
fn machine(llcs: u32, cores: u32, smt: u32) -> Topology {
    let text = format!(
        "[m]\nsockets = 1\nl3_per_socket = {llcs}\ncores_per_l3 = {cores}\nsmt = {smt}\nl3_kib = 1024"
    );
    Topology::from_machine(&text, "m").unwrap()
}

/// The pairs of the machine that a probe times, each with a median, and a tenth less and more as its range.
fn times(t: &Topology, ns: impl Fn(u32, u32) -> f64) -> Vec<Timed> {
    let timed = |(a, b): (CpuId, CpuId)| {
        let ns = ns(a.0, b.0);
        Timed { a, b, median_ns: ns, lo_ns: ns * 0.9, hi_ns: ns * 1.1 }
    };
    pairs(t, &t.online()).into_iter().map(timed).collect()
}

/// A machine's `c2c_*` values from the machine file.
fn c2c(name: &str) -> impl Fn(&str) -> Option<f64> {
    let sections = MACHINES.split("\n[").find(|s| s.starts_with(&format!("{name}]"))).unwrap();
    move |key| {
        let line = sections.lines().find(|l| l.split(" = ").next() == Some(&format!("c2c_{key}")))?;
        line.split([' ', '#']).nth(2)?.parse().ok()
    }
}

#[test]
fn an_honest_machine_of_two_cores_is_agreed_with() {
    let t = machine(1, 2, 1);
    let (text, noisy) = verdict(&t, &times(&t, |_, _| 23.0), None);
    assert_eq!(
        (text.as_str(), noisy),
        ("The times agree with the kernel: 23 ns within a last-level cache.", false)
    );
    let (text, noisy) = verdict(&t, &times(&t, |_, _| 23.0), KVM);
    assert!(!noisy && text.contains("agree") && text.contains("virtual machine (KVM) may move"), "{text}");
}

#[test]
fn siblings_that_are_said_to_be_two_cores_are_found() {
    let t = machine(1, 2, 1);
    let (text, noisy) = verdict(&t, &times(&t, |_, _| 8.0), KVM);
    let expected = "The kernel says cpu0 and cpu1 are two cores, but they hand a line over in 8.0 ns, like SMT siblings: \
                    the hypervisor (KVM) hides it.";
    assert!(!noisy && text.starts_with(expected), "{text}");
    // The times may have other causes too, and then the verdict does not say that the cache is split.
    let t = machine(1, 8, 1);
    let (text, noisy) = verdict(&t, &times(&t, |a, b| if a / 2 == b / 2 { 8.0 } else { 23.0 }), KVM);
    assert!(
        !noisy
            && text.contains("cpu0 and cpu1, cpu2 and cpu3, cpu4 and cpu5 (and 1 more pair) are two cores"),
        "{text}"
    );
    assert!(!text.contains("groups"), "{text}");
}

#[test]
fn cores_that_are_said_to_be_siblings_are_found() {
    let t = machine(1, 2, 2);
    let (text, _) = verdict(&t, &times(&t, |_, _| 25.0), KVM);
    assert!(text.contains("cpu0 and cpu2, cpu1 and cpu3 are SMT siblings, but they take 25 ns"), "{text}");
}

#[test]
fn two_caches_that_are_said_to_be_one_are_found() {
    let t = machine(1, 8, 1);
    let split = |a: u32, b: u32| if a / 4 == b / 4 { 23.0 + f64::from(a) } else { 100.0 + f64::from(b) };
    let (text, noisy) = verdict(&t, &times(&t, split), KVM);
    assert!(
        !noisy && text.contains("share llc0, but by their times they are 2 groups, 0-3 and 4-7"),
        "{text}"
    );
    assert!(text.contains("the hypervisor (KVM) hides it"), "{text}");
    // Two CPUs have one time, and only its size can show where they are.
    let t = machine(1, 2, 1);
    let (text, _) = verdict(&t, &times(&t, |_, _| 104.0), KVM);
    assert!(text.contains("share llc0, but they take 104 ns") && text.contains("15.7 to 60 ns"), "{text}");
}

#[test]
fn a_cache_whose_times_spread_without_a_gap_is_one() {
    // A large mesh: 40 ns to the neighbour, 80 ns to the far corner.
    let t = machine(1, 16, 1);
    let (text, noisy) = verdict(&t, &times(&t, |a, b| 40.0 + 2.7 * f64::from(a.abs_diff(b))), None);
    assert!(!noisy && text.contains("agree"), "{text}");
}

#[test]
fn one_cache_that_is_said_to_be_two_is_found() {
    let t = machine(2, 2, 1);
    let (text, _) = verdict(&t, &times(&t, |_, _| 24.0), KVM);
    assert!(text.contains("share no last-level cache, but they take 24 ns, like CPUs of one"), "{text}");
}

#[test]
fn a_machine_that_moves_its_cpus_is_not_trusted() {
    let t = machine(1, 2, 1);
    let drifting = Timed::of(CpuId(0), CpuId(1), vec![23.0, 195.0, 24.0, 23.5, 100.0]).unwrap();
    assert_eq!((drifting.median_ns, drifting.lo_ns, drifting.hi_ns), (24.0, 23.0, 195.0));
    let (text, noisy) = verdict(&t, &[drifting], KVM);
    let expected = "cpu0 and cpu1 spread over 23–195 ns between rounds, from what CPUs of one last-level cache take to \
                    what CPUs of different caches take: this virtual machine (KVM) moves its CPUs; don't trust one \
                    reading; probe again when it is quiet.";
    assert_eq!((text.as_str(), noisy), (expected, true));
    let (text, noisy) = verdict(&t, &[drifting], None);
    assert!(noisy && text.contains("this machine is busy"), "{text}");
    // No transfer takes 42 µs: another thread had the CPU.
    let (text, noisy) = verdict(&t, &[Timed { hi_ns: 42_243.0, ..drifting }], KVM);
    assert!(
        noisy && text.contains("23–42243 ns between rounds: this virtual machine (KVM) has other work"),
        "{text}"
    );
}

#[test]
fn one_unsteady_pair_of_many_is_left_out_and_the_others_speak() {
    let t = machine(1, 8, 1);
    let mut all = times(&t, |_, _| 23.0);
    all[3].hi_ns = 900.0;
    let (text, noisy) = verdict(&t, &all, None);
    assert!(
        !noisy && text.contains("cpu0 and cpu4 spread over 21–900 ns between rounds and are left out"),
        "{text}"
    );
    assert!(text.contains("The times agree"), "{text}");
    all.iter_mut().take(5).for_each(|p| p.hi_ns = 900.0);
    let (text, noisy) = verdict(&t, &all, None);
    assert!(
        noisy && text.contains("(and 4 more pairs by more than 2×)") && !text.contains("agree"),
        "{text}"
    );
}

#[test]
fn a_sampled_genoa_with_the_known_times_is_agreed_with() {
    let t = Topology::from_machine(MACHINES, "epyc9654_2p").unwrap();
    let c2c = c2c("epyc9654_2p");
    let times = times(&t, |a, b| {
        let key = match t.distance(CpuId(a), CpuId(b)).unwrap() {
            Distance::Same | Distance::Smt => "smt",
            Distance::Llc => "same_l3",
            Distance::Node | Distance::Socket => "same_socket",
            Distance::Other => "other_socket",
        };
        // Pairs at one distance differ by a few percent.
        c2c(key).unwrap() * (0.97 + 0.01 * f64::from((a * 31 + b * 17) % 7))
    });
    assert_eq!(times.len(), 657);
    let (text, noisy) = verdict(&t, &times, None);
    let expected = "The times agree with the kernel: 9.0 ns within a core, 23 ns within a last-level cache, 100 ns within a \
                    node, 195 ns across the machine.";
    assert_eq!((text.as_str(), noisy), (expected, false));
    let levels: Vec<f64> = levels(&times).iter().map(|(lo, _)| lo.round()).collect();
    assert_eq!(levels, [9.0, 22.0, 97.0, 189.0]);
}

#[test]
fn the_limits_lie_between_the_known_times() {
    let (mut smt, mut cache, mut beyond) = (Vec::new(), Vec::new(), Vec::new());
    for name in machines(MACHINES).unwrap() {
        let c2c = c2c(&name);
        smt.extend(c2c("smt"));
        cache.extend(c2c("same_l3"));
        beyond.extend(
            ["same_die", "same_ccd_other_l3", "same_socket", "same_chip", "other_socket"]
                .map(&c2c)
                .into_iter()
                .flatten(),
        );
    }
    let max = |times: &[f64]| times.iter().copied().fold(0.0, f64::max);
    let min = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(smt.len() >= 6 && cache.len() >= 6 && beyond.len() >= 9, "{smt:?} {cache:?} {beyond:?}");
    assert!(max(&smt) < SMT_NS_MAX && SMT_NS_MAX < min(&cache), "{smt:?} {cache:?}");
    assert!(max(&cache) < LLC_NS_MAX && LLC_NS_MAX < min(&beyond), "{cache:?} {beyond:?}");
    assert_eq!(LLC_NS_KNOWN, format!("{} to {}", min(&cache), max(&cache)));
}

#[test]
fn nothing_timed_is_said_and_no_panic() {
    let t = machine(1, 1, 1);
    assert_eq!(verdict(&t, &[], KVM), ("No pair of CPUs was timed.".into(), false));
    assert_eq!(Timed::of(CpuId(0), CpuId(1), Vec::new()), None);
}
