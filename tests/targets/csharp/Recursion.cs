// A recursion of a given depth in several threads. usage: Recursion.dll depth threads [seconds]
using System;
using System.Diagnostics;
using System.Runtime.CompilerServices;
using System.Threading;

static class Recursion
{
    static long sink;

    [MethodImpl(MethodImplOptions.NoInlining)]
    static ulong RecursionLeaf()
    {
        ulong x = 1;
        for (int i = 0; i < 400000; i++) x = x * 6364136223846793005UL + 1442695040888963407UL;
        return x;
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static ulong Recurse(int depth)
    {
        ulong below = depth > 1 ? Recurse(depth - 1) : RecursionLeaf();
        return below + (ulong)sink + 1;
    }

    static int Main(string[] arguments)
    {
        int depth = arguments.Length > 0 ? int.Parse(arguments[0]) : 50;
        int threads = arguments.Length > 1 ? int.Parse(arguments[1]) : 2;
        double seconds = arguments.Length > 2 ? double.Parse(arguments[2]) : 60;
        var clock = Stopwatch.StartNew();
        var all = new Thread[threads];
        for (int i = 0; i < threads; i++)
        {
            all[i] = new Thread(() =>
            {
                while (clock.Elapsed.TotalSeconds < seconds) sink = (long)(Recurse(depth) & 1);
            });
            all[i].Start();
        }
        foreach (var thread in all) thread.Join();
        Console.WriteLine("cpu name=dotnet pid={0} seconds={1:F6}", Process.GetCurrentProcess().Id,
            Process.GetCurrentProcess().TotalProcessorTime.TotalSeconds);
        return 0;
    }
}
