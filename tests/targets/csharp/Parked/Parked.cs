// Threads that wait, each below a chain of calls of its own kind, and what the runtime itself reports
// of each stack.
// usage: Parked file seconds
//
// The file has for each thread "thread TID KIND" and its managed frames, innermost first, one
// "frame NAME" a line, as StackTrace gave them on that thread immediately before it waited: the
// framework's frames of the waiting itself come on top.
using System.Collections.Generic;
using System.Diagnostics;
using System.Runtime.CompilerServices;
using System.Threading;
using Parking;

internal static class Parked
{
    private static int Main(string[] arguments)
    {
        Places.Prepare();
        var spots = new List<Spot>();
        lock (Places.Contended)
        {
            foreach (Spot spot in Chains.All()) Start(spot, spots);
            foreach (Spot spot in RuntimeChains.All()) Start(spot, spots);
            var lines = new List<string>();
            foreach (Spot spot in spots) lines.AddRange(spot.WaitUntilNoted());
            // From its note a thread has a few instructions to go before it waits.
            Thread.Sleep(300);
            Target.Save(arguments[0], lines);
            Target.Ready();
            Thread.Sleep((int)(Target.Number(arguments, 1, 5) * 1000));
        }
        return 0;
    }

    private static void Start(Spot spot, List<Spot> spots)
    {
        spots.Add(spot);
        // They end with the process.
        new Thread(spot.Begin, 4 << 20) { IsBackground = true }.Start();
    }
}

namespace Parking
{
    internal delegate ulong Chain(Spot spot, ulong x);

    // A thread, where it waits and what its stack was then.
    internal sealed class Spot
    {
        private readonly string kind;
        private readonly Chain chain;
        private volatile List<string> lines;

        public Spot(string kind, Chain chain)
        {
            this.kind = kind;
            this.chain = chain;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public void Begin()
        {
            Places.Sink += chain(this, 1) + 1;
        }

        // Called by the method that waits, whose frame is the first that is written down.
        [MethodImpl(MethodImplOptions.NoInlining)]
        public void Note()
        {
            var noted = new List<string> { "thread " + Target.ThreadId.ToString() + " " + kind };
            foreach (StackFrame frame in new StackTrace(1).GetFrames())
            {
                noted.Add("frame " + FrameNames.Of(frame));
            }
            lines = noted;
        }

        public List<string> WaitUntilNoted()
        {
            while (lines == null) Thread.Sleep(1);
            return lines;
        }
    }
}
