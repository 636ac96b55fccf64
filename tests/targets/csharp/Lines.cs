// Hot loops, each on one line that a comment marks: "HOT name".
// usage: Lines seconds-each
using System;
using System.Runtime.CompilerServices;
using System.Threading.Tasks;

internal static class Lines
{
    private static ulong sink;

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static ulong Plain(double end)
    {
        ulong x = sink;
        while (Target.Now < end)
        {
            for (int i = 0; i < 1000000; i++) x = x * 6364136223846793005UL + 1442695040888963407UL; // HOT plain
        }
        return x;
    }

#if !TRIMMED
    private static async Task<ulong> Async(double end)
    {
        ulong x = sink;
        await Task.Yield();
        while (Target.Now < end)
        {
            for (int i = 0; i < 1000000; i++) x = x * 6364136223846793005UL + 1442695040888963407UL; // HOT async
        }
        return x;
    }
#endif

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static ulong Lambda(double end)
    {
        Func<ulong, ulong> burn = x =>
        {
            while (Target.Now < end)
            {
                for (int i = 0; i < 1000000; i++) x = x * 6364136223846793005UL + 1442695040888963407UL; // HOT lambda
            }
            return x;
        };
        return burn(sink);
    }

    // Called often: the runtime compiles it again, better.
    [MethodImpl(MethodImplOptions.NoInlining)]
    private static ulong Tiered(ulong x)
    {
        x += 1;
        for (int i = 0; i < 4000; i++) x = x * 6364136223846793005UL + 1442695040888963407UL; // HOT tiered
        return x;
    }

    private static int Main(string[] arguments)
    {
        double seconds = Target.Number(arguments, 0, 1);
        Target.Ready();
        sink = Plain(Target.Now + seconds);
#if !TRIMMED
        sink = Async(Target.Now + seconds).Result;
#endif
        sink = Lambda(Target.Now + seconds);
        double end = Target.Now + seconds;
        while (Target.Now < end) sink += Tiered(sink);
        end = Target.Now + seconds;
        while (Target.Now < end) sink += LinesEmbedded.Burn(sink);
        Target.ReportCpu("Lines");
        return 0;
    }
}
