// Many small methods of every kind that a stack walk can trip over, and the graph of who calls whom.
// usage: SmallMethods graph-file seconds
//
// Nothing is inlined and nothing calls itself, so a caller that is missing from a sample shows: no
// method calls what a method it calls calls. Compiled with VERIFY, each innermost method now and then
// asks the runtime itself for the stack; Main prints what was seen, so that the graph can be tested
// without a profiler.
using System;
using System.Runtime.CompilerServices;
using System.Threading;
using Small;

internal static class SmallMethods
{
    private static ulong sink;

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static ulong Round(ulong x)
    {
        x += Frameless.Run(3000, x);
        x += Framed.Run(3000, x);
        x += BigFrames.Run(400, x);
        x += Deep.Run(20, x);
        x += GenericVirtual.Run(1500, x);
        x += Delegates.Run(1500, x);
        x += TailCalls.Run(3000, x);
        x += Waits.Run(200, x);
        x += Exceptions.Run(10, x);
        x += Sequences.Run(300, x);
        x += Native.Run(60, x);
        return x;
    }

    private static int Main(string[] arguments)
    {
        Graph.Chain("", "SmallMethods.Main > SmallMethods.Round");
        Graph.Root("SmallMethods.Main");
        Frameless.Describe();
        Framed.Describe();
        BigFrames.Describe();
        Deep.Describe();
        GenericVirtual.Describe();
        Delegates.Describe();
        TailCalls.Describe();
        Waits.Describe();
        Exceptions.Describe();
        Sequences.Describe();
        Native.Describe();
        OsrLoops.Describe();
        Graph.Write(arguments[0]);

        double end = Target.Now + Target.Number(arguments, 1, 5);
        var loops = new Thread(OsrLoops.Start);
        loops.Start(end);
        Target.Ready();
        while (Target.Now < end) sink += Round(sink);
        loops.Join();
#if VERIFY
        Verify.Print();
#endif
        Target.ReportCpu("SmallMethods");
        return 0;
    }
}
