//! The loaded program: tables and settings before loading, counts and exit while it runs.

use crate::replay::{Replay, Replayed};
use crate::settings::{Assignment, Shared};
use crate::topology::Shards;
use crate::{counts, tables};
use anyhow::{Context, Result, anyhow};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, OpenObject, PrintLevel};
use skel::{WarmSkel, WarmSkelBuilder};
use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::sync::atomic::{Ordering, fence};

#[allow(missing_docs, clippy::all, clippy::undocumented_unsafe_blocks, clippy::missing_safety_doc, unused)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/warm.skel.rs"));
}

/// The program asks to be loaded again: SCX_ECODE_ACT_RESTART.
const RESTART: i64 = 1 << 48;

/// Why the kernel ended the scheduler.
#[derive(Debug)]
pub struct Exit {
    /// The kernel's number: SCX_EXIT_*.
    pub number: u64,
    /// The kernel's reason, as "unregistered from user space".
    pub reason: String,
    /// What the kernel or the program adds.
    pub message: String,
    /// Whether the program asks to be loaded again with a new topology.
    pub wants_restart: bool,
}

impl Exit {
    /// The name of the number: those of SCX_EXIT_*.
    pub fn kind(&self) -> &'static str {
        match self.number {
            0 => "none",
            1 => "done",
            64 => "unregistered",
            65 => "unregistered_by_bpf",
            66 => "unregistered_by_kernel",
            67 => "sysrq",
            68 => "parent",
            1024 => "error",
            1025 => "error_bpf",
            1026 => "stall",
            _ => "unknown",
        }
    }
}

/// The scheduler while it runs. Dropping it without [`Scheduler::stop`] detaches it, too.
pub struct Scheduler<'o> {
    skel: WarmSkel<'o>,
    link: Option<Link>,
    settings: Shared,
    replay: Replay,
}

impl<'o> Scheduler<'o> {
    /// Loads the program into the kernel and enables it for all tasks.
    ///
    /// # Errors
    /// Returns an error if the verifier or the kernel refuses the program.
    pub fn start(
        object: &'o mut MaybeUninit<OpenObject>,
        shards: &Shards,
        set: &[Assignment],
        replayed: Replayed,
    ) -> Result<Self> {
        // libbpf's warnings go to stderr; its notes about fields that an older kernel lacks do not.
        libbpf_rs::set_print(Some((PrintLevel::Warn, |_, text| eprint!("{text}"))));
        let mut open = WarmSkelBuilder::default().open(object).context("the BPF program cannot be opened")?;
        let tables = open.maps.rodata_data.as_deref_mut().context("the BPF program has no .rodata")?;
        tables.nr_cpu_ids = shards.nr_cpu_ids;
        tables.nr_shards = shards.shards.len() as u32;
        tables.has_smt = shards.has_smt;
        tables.shard_of_cpu = [tables::MAX_SHARDS as u32; tables::MAX_CPUS];
        let mut first = 0;
        for (number, shard) in shards.shards.iter().enumerate() {
            tables.llc_of_shard[number] = shard.llc;
            tables.shard_first[number] = first as u32;
            tables.shard_len[number] = shard.cpus.len() as u32;
            for (position, cpu) in shard.cpus.iter().enumerate() {
                tables.shard_of_cpu[*cpu as usize] = number as u32;
                tables.pos_of_cpu[*cpu as usize] = position as u32;
                tables.shard_cpus[first + position] = *cpu;
            }
            if number == 0 || shard.llc != shards.shards[number - 1].llc {
                tables.llc_first[shard.llc as usize] = first as u32;
            }
            tables.llc_len[shard.llc as usize] += shard.cpus.len() as u32;
            let near = number * tables::MAX_SHARDS;
            tables.near_shards[near..near + shard.near.len()].copy_from_slice(&shard.near);
            first += shard.cpus.len();
        }
        let mut skel =
            open.load().context("the kernel refuses the BPF program; `scx_warm check` may say why")?;
        let data = skel.maps.data_data.as_deref_mut().context("the BPF program has no .data")?;
        const { assert!(size_of::<skel::types::settings>() == tables::SETTINGS.len() * size_of::<u64>()) };
        // SAFETY: the struct has one u64 per setting, as asserted, in memory that is mapped while `skel` lives; this
        // is its only user.
        let mut settings = unsafe { Shared::new((&raw mut data.settings).cast()) };
        for assignment in set {
            settings.set(*assignment);
        }
        let replay = Replay::new(&skel.maps.decisions, replayed)?;
        let link = skel
            .maps
            .warm_ops
            .attach_struct_ops()
            .context("the kernel does not enable the scheduler; dmesg may say why")?;
        Ok(Self { skel, link: Some(link), settings, replay })
    }

    /// The settings of the running program.
    pub fn settings(&mut self) -> &mut Shared {
        &mut self.settings
    }

    /// The log of decisions.
    pub fn replay(&self) -> &Replay {
        &self.replay
    }

    /// Reads the counts, in the order of [`tables::COUNTS`].
    ///
    /// # Errors
    /// Returns an error if the map cannot be read.
    pub fn counts(&self) -> Result<Vec<u64>> {
        counts::read(&self.skel.maps.counts)
    }

    /// Returns why the kernel ended the scheduler, if it did.
    pub fn exit(&self) -> Option<Exit> {
        let bss = self.skel.maps.bss_data.as_deref()?;
        // SAFETY: a u64 in memory that is mapped while `skel` lives; the program writes it once, last.
        let number = unsafe { (&raw const bss.exit_kind).read_volatile() };
        // ORDERING: Acquire; the program writes the texts before the number.
        fence(Ordering::Acquire);
        (number != 0).then(|| Exit {
            number,
            reason: text(&bss.exit_reason),
            message: text(&bss.exit_msg),
            wants_restart: bss.exit_code & RESTART != 0,
        })
    }

    /// Disables the scheduler and returns the kernel's reason: "unregistered" unless it had ended before.
    ///
    /// # Errors
    /// Returns an error if the program did not write a reason.
    pub fn stop(&mut self) -> Result<Exit> {
        drop(self.link.take());
        self.exit().ok_or_else(|| anyhow!("the scheduler was detached and gave no reason"))
    }
}

fn text(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
