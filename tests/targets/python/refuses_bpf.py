# refuses_bpf.py COMMAND PROGRAM [ARGUMENT...]: starts a program to which bpf(COMMAND) is refused, as
# a container's filter of system calls (seccomp) may do.
import ctypes
import os
import struct
import sys

BPF, X86_64 = 321, 0xC000003E
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER = 38, 22, 2
REFUSED, ALLOWED = 0x00050000 | 1, 0x7FFF0000


def statement(code, value, jump_true=0, jump_false=0):
    return struct.pack("HBBI", code, jump_true, jump_false, value)


LOAD, IS_EQUAL, RETURN = 0x20, 0x15, 0x06
program = b"".join([
    statement(LOAD, 4),
    statement(IS_EQUAL, X86_64, 0, 5),
    statement(LOAD, 0),
    statement(IS_EQUAL, BPF, 0, 3),
    statement(LOAD, 16),
    statement(IS_EQUAL, int(sys.argv[1]), 0, 1),
    statement(RETURN, REFUSED),
    statement(RETURN, ALLOWED),
])
words = ctypes.create_string_buffer(program)
header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(words)))
libc = ctypes.CDLL(None, use_errno=True)
for arguments in (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, FILTER, header, 0, 0):
    if libc.prctl(*arguments) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
os.execvp(sys.argv[2], sys.argv[2:])
