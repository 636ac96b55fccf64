/* Its function is called as Swift's compiler would call it, once it is compiled: assemblers take a
 * dollar for the beginning of a number. */
__attribute__((noinline)) int paid(int order)
{
    return order * 3 + 1;
}

int main(int argc, char **argv)
{
    (void)argv;
    return paid(argc);
}
