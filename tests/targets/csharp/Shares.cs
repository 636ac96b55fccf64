// Three methods that take 50, 30 and 20 % of the CPU time, from the first moment on, whatever code
// the runtime has for them: whichever is furthest behind its share has the next turn. Turns are of
// random length, so that they are never in step with a sampler.
// usage: Shares seconds
//
// The first is reached through a recursion, the second through a delegate, the third through a
// lambda that LINQ calls.
using System;
using System.Globalization;
using System.Linq;
using System.Runtime.CompilerServices;

internal static class Shares
{
    private const int LeastIterations = 100000;
    private const int MostIterations = 500000;

    private static readonly double[] wanted = { 0.5, 0.3, 0.2 };
    private static readonly int[] one = { 1 };
    // Seconds that each has taken, without what it took to get there.
    private static readonly double[] used = new double[3];
    private static ulong sink;
    private static ulong random = 42;
    // Iterations of the current turn.
    private static int length;

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static ulong BurnFifty(ulong x)
    {
        int iterations = length;
        double before = Target.ThreadCpu;
        for (int i = 0; i < iterations; i++) x = x * 6364136223846793005UL + 1442695040888963407UL;
        used[0] += Target.ThreadCpu - before;
        return x;
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static ulong BurnThirty(ulong x)
    {
        int iterations = length;
        double before = Target.ThreadCpu;
        for (int i = 0; i < iterations; i++) x = x * 6364136223846793005UL + 1442695040888963407UL;
        used[1] += Target.ThreadCpu - before;
        return x;
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static ulong BurnTwenty(ulong x)
    {
        int iterations = length;
        double before = Target.ThreadCpu;
        for (int i = 0; i < iterations; i++) x = x * 6364136223846793005UL + 1442695040888963407UL;
        used[2] += Target.ThreadCpu - before;
        return x;
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static ulong Descend(int depth, ulong x)
    {
        return depth > 0 ? Descend(depth - 1, x) + 1 : BurnFifty(x);
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static ulong Turn(int which, Func<ulong, ulong> thirty, ulong x)
    {
        switch (which)
        {
            case 0:
                return Descend(10, x);
            case 1:
                return thirty(x);
            default:
                return one.Select(_ => BurnTwenty(x)).Max();
        }
    }

    private static int Furthest()
    {
        int furthest = 0;
        for (int i = 1; i < used.Length; i++)
        {
            if (used[i] / wanted[i] < used[furthest] / wanted[furthest]) furthest = i;
        }
        return furthest;
    }

    private static int NextLength()
    {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        return LeastIterations + (int)(random % (MostIterations - LeastIterations));
    }

    private static int Main(string[] arguments)
    {
        double end = Target.Now + Target.Number(arguments, 0, 5);
        Target.Ready();
        Func<ulong, ulong> thirty = BurnThirty;
        while (Target.Now < end)
        {
            length = NextLength();
            sink += Turn(Furthest(), thirty, sink);
        }
        string[] names = { "BurnFifty", "BurnThirty", "BurnTwenty" };
        for (int i = 0; i < names.Length; i++)
        {
            var share = (used[i] / (used[0] + used[1] + used[2])).ToString("F4", CultureInfo.InvariantCulture);
            Target.Say("share name=Shares." + names[i] + " of=" + share);
        }
        Target.ReportCpu("Shares");
        return 0;
    }
}
