/* A function of assembly without a size, as those of musl, and hidden code behind it. */
__asm__(
    ".text\n"
    ".balign 16\n"
    ".globl sizeless\n"
    ".type sizeless, @function\n"
    "sizeless:\n"
    "    test %edi, %edi\n"
    "    je 1f\n"
    "    mov $1, %eax\n"
    "    ret\n"
    "1:  xor %eax, %eax\n"
    "    ret\n"
    ".balign 32\n"
    ".Lhidden:\n"
    "    mov $2, %eax\n"
    "    ret\n"
    ".balign 64\n");

int sizeless(int argument);

int main(int argc, char **argv)
{
    (void)argv;
    return sizeless(argc);
}
