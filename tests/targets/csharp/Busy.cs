// Work of the same kind all the time, and how much of it was done: for comparing a program's speed
// with and without a profiler.
// usage: Busy seconds [interval]
//
// An operation is a few dozen calls (static, virtual, through an interface and a delegate), a look
// into a dictionary and some short-lived objects. "rate N" is operations per second of the last
// interval, "total N" of everything after the first second, in which the code is compiled, and
// "progress OPERATIONS SECONDS CPU" is what was done so far, when, and the thread's CPU time then.
using System;
using System.Collections.Generic;
using System.Globalization;
using System.Runtime.CompilerServices;

internal static class Busy
{
    private const double WarmUp = 1;

    private abstract class Node
    {
        public Node Next;

        public abstract ulong Visit(ulong x);
    }

    private sealed class Adder : Node
    {
        public override ulong Visit(ulong x) => x + 3;
    }

    private sealed class Multiplier : Node
    {
        public override ulong Visit(ulong x) => x * 6364136223846793005UL;
    }

    private static readonly Dictionary<ulong, ulong> table = new Dictionary<ulong, ulong>();
    private static readonly Func<ulong, ulong> mix = x => (x ^ (x >> 17)) + 1;
    private static readonly IComparer<ulong> order = Comparer<ulong>.Default;
    private static Node list;
    private static ulong sink;

    private static void Prepare()
    {
        for (ulong i = 0; i < 512; i++)
        {
            table[i] = i * i;
            Node node = i % 2 == 0 ? (Node)new Adder() : new Multiplier();
            node.Next = i % 16 == 0 ? null : list;
            list = node;
        }
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static ulong Operation(ulong x)
    {
        for (Node node = list; node != null; node = node.Next) x = node.Visit(x);
        x = mix(x) + Look(x % 512);
        x += (ulong)order.Compare(x, 7);
        return Allocate(x);
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static ulong Look(ulong key) => table.TryGetValue(key, out ulong value) ? value : 0;

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static ulong Allocate(ulong x)
    {
        var words = new ulong[16];
        words[x % 16] = x;
        var boxed = (object)words[3];
        var pair = new KeyValuePair<string, object>("word", boxed);
        return x + (ulong)pair.Key.Length + words[x % 16] + (ulong)boxed.GetHashCode();
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static void Some()
    {
        for (int i = 0; i < 1000; i++) sink = Operation(sink);
    }

    private static long Until(double end)
    {
        long operations = 0;
        for (; Target.Now < end; operations += 1000) Some();
        return operations;
    }

    private static void Report(string name, long operations, double seconds)
    {
        Target.Say(name + " " + (operations / seconds).ToString("F0", CultureInfo.InvariantCulture));
    }

    private static string Seconds(double value) => value.ToString("F6", CultureInfo.InvariantCulture);

    private static int Main(string[] arguments)
    {
        double end = Target.Now + Target.Number(arguments, 0, 5);
        double interval = Target.Number(arguments, 1, 1);
        Prepare();
        Until(Target.Now + WarmUp);
        Target.Ready();
        double start = Target.Now;
        long total = 0;
        while (Target.Now < end)
        {
            double from = Target.Now;
            long operations = Until(Math.Min(end, from + interval));
            Report("rate", operations, Target.Now - from);
            total += operations;
            Target.Say("progress " + total.ToString() + " " + Seconds(Target.Now) + " " + Seconds(Target.ThreadCpu));
        }
        Report("total", total, Target.Now - start);
        Target.ReportCpu("Busy");
        return 0;
    }
}
