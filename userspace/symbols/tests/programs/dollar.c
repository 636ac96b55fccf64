/* A function named as Swift's compiler names those of Linux programs. */
int paid(int order) __asm__("$s4shop3payyS2iF");

__attribute__((noinline)) int paid(int order)
{
    return order * 3 + 1;
}

int main(int argc, char **argv)
{
    (void)argv;
    return paid(argc);
}
