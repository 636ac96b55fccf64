// A library whose line numbers are inside it.
using System.Runtime.CompilerServices;

public static class LinesEmbedded
{
    [MethodImpl(MethodImplOptions.NoInlining)]
    public static ulong Burn(ulong x)
    {
        x += 1;
        for (int i = 0; i < 100000; i++) x = x * 6364136223846793005UL + 1442695040888963407UL; // HOT embedded
        return x;
    }
}
