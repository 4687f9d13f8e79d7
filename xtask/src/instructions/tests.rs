use super::*;

/// As callgrind 3.19 writes it.
const PROFILE: &str = "\
# callgrind format
version: 1
cmd: poll count ours 20000
positions: instr
events: Ir
summary: 1119

ob=(3) /usr/lib/libc.so.6
fl=(153) libc-start.c
fn=(848) main
0x27280 1
+2 10
cob=(2) /bin/poll
cfi=(4) poll.rs
cfn=(850) poll
calls=8 0x1000
* 800
+4 100

ob=(2)
fl=(4)
fn=(850)
0x1000 8
+10 900
* 50
-6 50
";

#[test]
fn each_instruction_counts_where_it_is_and_no_call_counts_twice() {
    let ran = executed(PROFILE).expect("it is well-formed");
    assert_eq!(ran["/usr/lib/libc.so.6"], HashMap::from([(0x27280, 1), (0x27282, 10), (0x27286, 100)]));
    assert_eq!(ran["/bin/poll"], HashMap::from([(0x1000, 8), (0x100a, 950), (0x1004, 50)]));
    assert_eq!(ran.values().flat_map(HashMap::values).sum::<u64>(), 1119, "the summary");
}

#[test]
fn a_profile_that_is_cut_off_is_no_profile() {
    assert!(executed("ob=(1)\n0x10 1\n").is_none(), "no name");
    assert!(executed("0x10 1\n").is_none(), "no object");
    assert!(executed("ob=(1) a\n0x10\n").is_none(), "no count");
}

#[test]
fn locked_is_what_has_the_prefix_or_exchanges_with_memory() {
    for locked in [
        "lock cmpxchg %rcx,0x10(%rbx)",
        "lock xadd %eax,(%rdi)",
        "lock or $0x0,-0x40(%rsp)",
        "lock incl 0x8(%rax)",
        "lock cmpxchg16b (%rdi)",
        "rex.W lock addq $0x1,(%rax)",
        "xacquire lock cmpxchg %edx,(%rdi)",
        "xchg   %al,0x8(%rbx)",
        "xchg   %rax,0x2fe4(%rip)        # 4040 <lock>",
        "xchgl  $0x1,%fs:(%rax)",
    ] {
        assert!(locks(locked), "{locked}");
    }
    for not in [
        "xchg   %ax,%ax",
        "xchg   %rax,%rdx",
        "cmpxchg %rcx,0x10(%rbx)",
        "mov    (%rdi),%rax",
        "call   1234 <lock>",
        "nop",
        "",
    ] {
        assert!(!locks(not), "{not}");
    }
}

#[test]
fn a_disassembly_says_where_instructions_are() {
    let code = Code::of_disassembly(
        "\npoll:     file format elf64-x86-64\n\nDisassembly of section .text:\n\n0000000000001000 <poll>:\n\
         \x20   1000:\tpush   %rbp\n    1001:\tlock xadd %eax,(%rdi)\n    1005:\txchg   %al,(%rsi)\n    1007:\tret\n",
    );
    assert_eq!(code.all, HashSet::from([0x1000, 0x1001, 0x1005, 0x1007]));
    assert_eq!(code.locked, HashSet::from([0x1001, 0x1005]));
}
