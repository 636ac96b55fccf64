// Paces KIND RATE SECONDS GO: once the file GO exists, four threads make RATE events a second of a kind,
// or as many as they can. Prints how many there were by its own count, or the runtime's.
//
// exceptions: thrown and caught.
// locks: one lock that is held for some microseconds: waits for it are what the runtime counts.
// allocations: for each event 100 kB of arrays, of which the runtime samples about one; printed are bytes.
using System;
using System.Diagnostics;
using System.IO;
using System.Runtime.CompilerServices;
using System.Threading;

namespace Shop
{
    static class Paces
    {
        const int Threads = 4;

        class Sold : Exception { }

        static readonly object door = new object();
        static long made;
        static object kept;

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void Throw() { throw new Sold(); }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void ThrowOne()
        {
            try { Throw(); } catch (Sold) { }
            Interlocked.Increment(ref made);
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void LockOne()
        {
            lock (door)
            {
                long until = Stopwatch.GetTimestamp() + Stopwatch.Frequency / 20000;
                while (Stopwatch.GetTimestamp() < until) { }
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void AllocateOne()
        {
            for (int number = 0; number < 50; number++) kept = new byte[2000];
        }

        // As many as are due by now, then a pause of a millisecond.
        static void Work(Action one, double rate, double seconds)
        {
            var clock = Stopwatch.StartNew();
            for (long done = 0; clock.Elapsed.TotalSeconds < seconds;)
            {
                long due = (long)(clock.Elapsed.TotalSeconds * rate);
                if (done >= due) { Thread.Sleep(1); continue; }
                one();
                done++;
            }
        }

        static int Main(string[] arguments)
        {
            double rate = double.Parse(arguments[1]) / Threads, seconds = double.Parse(arguments[2]);
            Action one = ThrowOne;
            if (arguments[0] == "locks") one = LockOne;
            if (arguments[0] == "allocations") one = AllocateOne;
            // It is compiled before it is recorded.
            for (int number = 0; number < 100; number++) one();
            Console.WriteLine("ready");
            while (!File.Exists(arguments[3])) Thread.Sleep(10);
            Interlocked.Exchange(ref made, 0);
            long waits = Monitor.LockContentionCount, bytes = GC.GetTotalAllocatedBytes(true);
            var threads = new Thread[Threads];
            for (int i = 0; i < Threads; i++) threads[i] = new Thread(() => Work(one, rate, seconds));
            foreach (var thread in threads) thread.Start();
            foreach (var thread in threads) thread.Join();
            waits = Monitor.LockContentionCount - waits;
            bytes = GC.GetTotalAllocatedBytes(true) - bytes;
            long counted = arguments[0] == "locks" ? waits : arguments[0] == "allocations" ? bytes : made;
            Console.WriteLine($"counted={counted}");
            return 0;
        }
    }
}
