/* Frames that only hand-written assembly has: as in OpenSSL's ciphers and GMP's arithmetic. Run one
   instruction at a time. */
    .text

/* The CFA counts from a register that calls need not keep, across a call (OpenSSL's AES-GCM). */
    .globl by_register
    .type by_register, @function
by_register:
    .cfi_startproc
    leaq 8(%rsp), %rax
    .cfi_def_cfa %rax, 0
    pushq %rbx
    .cfi_offset %rbx, -16
    pushq %rbp
    .cfi_offset %rbp, -24
    subq $200, %rsp
    andq $-64, %rsp
    call keeps_all
    movl $1, %ebx
    xorl %ebp, %ebp
    call keeps_all
    movq -24(%rax), %rbp
    .cfi_restore %rbp
    movq -16(%rax), %rbx
    .cfi_restore %rbx
    leaq -8(%rax), %rsp
    .cfi_def_cfa %rsp, 8
    ret
    .cfi_endproc
    .size by_register, . - by_register

    .type keeps_all, @function
keeps_all:
    .cfi_startproc
    pushq %rdx
    .cfi_adjust_cfa_offset 8
    movl $3, %edx
    popq %rdx
    .cfi_adjust_cfa_offset -8
    ret
    .cfi_endproc
    .size keeps_all, . - keeps_all

/* The caller's stack pointer lies behind an array (OpenSSL's bn_mul_mont):
   CFA = *(rsp + 8 + r9 * 8) + 8. */
    .globl by_index
    .type by_index, @function
by_index:
    .cfi_startproc
    movq %rsp, %rax
    .cfi_def_cfa_register %rax
    pushq %rbx
    .cfi_offset %rbx, -16
    pushq %rbp
    .cfi_offset %rbp, -24
    movl $17, %r9d
    leaq -160(%rsp), %rsp
    andq $-256, %rsp
    movq %rax, 8(%rsp,%r9,8)
    .cfi_escape 0x0f, 13, 0x77, 8, 0x79, 0, 0x38, 0x1e, 0x22, 0x06, 0x23, 8, 0x96, 0x96, 0x96
    xorl %eax, %eax
    movl $5, %ebp
1:  decl %ebp
    jnz 1b
    movq 8(%rsp,%r9,8), %rsi
    .cfi_def_cfa %rsi, 8
    movq -16(%rsi), %rbp
    .cfi_restore %rbp
    movq -8(%rsi), %rbx
    .cfi_restore %rbx
    leaq (%rsi), %rsp
    .cfi_def_cfa_register %rsp
    ret
    .cfi_endproc
    .size by_index, . - by_index

/* Undescribed, with jumps to places whose addresses it takes, and a frame pointer that it clears as a
   thread's start does (GMP's mul_basecase). */
    .globl undescribed
    .type undescribed, @function
    .p2align 5
undescribed:
    pushq %rbx
    pushq %rbp
    pushq %r14
    movl $3, %ebx
    leaq 3f(%rip), %r14
    jmp 2f
    .p2align 4
2:  decl %ebx
    jmp *%r14
    .p2align 4
3:  xorl %ebp, %ebp
    addl $2, %ebp
    leaq 4f(%rip), %r14
    jmp 2b
    .p2align 4
4:  xorl %ebp, %ebp
    nop
    testl %ebx, %ebx
    jg 2b
    popq %r14
    popq %rbp
    popq %rbx
    ret
    .size undescribed, . - undescribed

    .globl main
    .type main, @function
main:
    .cfi_startproc
    subq $8, %rsp
    .cfi_def_cfa_offset 16
    call by_register
    call by_index
    call undescribed
    xorl %eax, %eax
    addq $8, %rsp
    .cfi_def_cfa_offset 8
    ret
    .cfi_endproc
    .size main, . - main
    .section .note.GNU-stack, "", @progbits
