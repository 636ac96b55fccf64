// Makes the runtime collect garbage, and counts how often.
//
// Collects counted GO COUNT: once the file GO exists, a thread collects generation 0, 1 and 2, COUNT times
//     each. Prints how often, the nanoseconds that the calls took by its own clock, and those that the
//     runtime says it was paused ("pauses"; 0 where it does not).
// Collects background GO COUNT: the same thread, which wants COUNT collections of all, in the background.
//     Prints "wanted" and "pauses".
// Collects storm GO SECONDS: four threads allocate as fast as they can, and now and then one wants a
//     collection, until the file GO.end exists, SECONDS at most. Prints how many times each was round.
using System;
using System.Diagnostics;
using System.IO;
using System.Reflection;
using System.Runtime.CompilerServices;
using System.Threading;

namespace Shop
{
    static class Collects
    {
        class Link { public Link Next; public long Number; }

        static string go;
        static Link kept;
        static object last;
        static volatile bool ends;
        static readonly long[] counts = new long[3], ticks = new long[3], rounds = new long[4];

#if TRIMMED
        // What GC.Collect calls: generation, mode, whether memory is low.
        static readonly Action<int, int, bool> collect =
            (Action<int, int, bool>)typeof(GC)
                .GetMethod("_Collect", BindingFlags.NonPublic | BindingFlags.Static)
                .CreateDelegate(typeof(Action<int, int, bool>));

        static void Collect(int generation, bool blocking)
        {
            const int NonBlocking = 1, Blocking = 2;
            collect(generation, blocking ? Blocking : NonBlocking, false);
        }
#else
        static void Collect(int generation, bool blocking)
        {
            GC.Collect(generation, GCCollectionMode.Forced, blocking);
        }
#endif

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void CollectYoung() { Collect(0, true); }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void CollectMiddle() { Collect(1, true); }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void CollectAll() { Collect(2, true); }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void CollectInBackground() { Collect(2, false); }

        // So that there is something to look at in each collection.
        [MethodImpl(MethodImplOptions.NoInlining)]
        static void Make(int count)
        {
            for (int number = 0; number < count; number++) kept = new Link { Next = kept, Number = number };
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void Timed(int generation)
        {
            Make(1000);
            long start = Stopwatch.GetTimestamp();
            switch (generation)
            {
                case 0: CollectYoung(); break;
                case 1: CollectMiddle(); break;
                default: CollectAll(); break;
            }
            ticks[generation] += Stopwatch.GetTimestamp() - start;
            counts[generation]++;
        }

        // From .NET 7 on.
        static long Paused()
        {
            MethodInfo method = typeof(GC).GetMethod("GetTotalPauseDuration");
            return method == null ? 0 : ((TimeSpan)method.Invoke(null, null)).Ticks * 100;
        }

        static void WaitForGo() { while (!File.Exists(go)) Thread.Sleep(10); }

        static long Nanoseconds(long ticks) { return (long)(ticks * (1e9 / Stopwatch.Frequency)); }

        static void Counted(int count)
        {
            Make(500000);
            for (int generation = 0; generation < 3; generation++) Timed(generation);
            Array.Clear(counts, 0, 3);
            Array.Clear(ticks, 0, 3);
            Console.WriteLine("ready");
            WaitForGo();
            long before = Paused();
            for (int number = 0; number < count; number++)
            {
                for (int generation = 0; generation < 3; generation++) Timed(generation);
                Thread.Sleep(5);
            }
            long paused = Paused() - before;
            for (int generation = 0; generation < 3; generation++)
            {
                Console.WriteLine($"gen{generation}={counts[generation]}"
                    + $" gen{generation}_time={Nanoseconds(ticks[generation])}");
            }
            Console.WriteLine($"pauses={paused}");
        }

        static void Background(int count)
        {
            Make(500000);
            CollectAll();
            Console.WriteLine("ready");
            WaitForGo();
            long before = Paused();
            for (int number = 0; number < count; number++)
            {
                CollectInBackground();
                Thread.Sleep(100);
            }
            Console.WriteLine($"wanted={count} pauses={Paused() - before}");
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void Allocate(int thread, double seconds)
        {
            WaitForGo();
            var end = Stopwatch.StartNew();
            while (!ends && end.Elapsed.TotalSeconds < seconds)
            {
                for (int number = 0; number < 1000; number++) last = new byte[100 + 100 * (number % 10)];
                if (thread == 0 && rounds[0] % 50 == 0) Collect((int)(rounds[0] / 50 % 3), true);
                rounds[thread]++;
            }
        }

        static void Storm(double seconds)
        {
            Make(100000);
            var threads = new Thread[4];
            for (int number = 0; number < threads.Length; number++)
            {
                int own = number;
                threads[number] = new Thread(() => Allocate(own, seconds));
                threads[number].Start();
            }
            Console.WriteLine("ready");
            foreach (var thread in threads)
                while (!thread.Join(20)) ends = File.Exists(go + ".end");
            for (int number = 0; number < threads.Length; number++)
                Console.WriteLine($"thread{number}={rounds[number]}");
        }

        static int Main(string[] arguments)
        {
            go = arguments[1];
            int much = int.Parse(arguments[2]);
            if (arguments[0] == "storm") { Storm(much); return 0; }
            var thread = new Thread(() =>
            {
                if (arguments[0] == "counted") Counted(much); else Background(much);
            });
            thread.Start();
            thread.Join();
            return 0;
        }
    }
}
