// Floods GO SECONDS ON OFF KEEP: once the file GO exists, two threads allocate as fast as they can for ON
// milliseconds, then nothing for OFF, and so on. About 32 kB of each of three classes are allocated in
// each round, and in one of KEEP rounds (0: in none) an array of 8,000 bytes that is kept. Prints how many objects and how many bytes of each were made since then, and in how many
// milliseconds. Before, it has run long enough for its methods to be compiled for good.
using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.IO;
using System.Linq;
using System.Runtime.CompilerServices;
using System.Threading;

namespace Shop
{
    static class Floods
    {
        // Its header, its class and two words.
        class Small { public long One = 1, Two = 2; }

        const int Threads = 2;

        [ThreadStatic] static object kept;

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void MakeSmall() { for (int i = 0; i < 1000; i++) kept = new Small(); }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void MakeMiddle() { for (int i = 0; i < 32; i++) kept = new byte[1000]; }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void MakeLarge() { for (int i = 0; i < 4; i++) kept = new long[1000]; }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void Round() { MakeSmall(); MakeMiddle(); MakeLarge(); }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static byte[] Keep() { return new byte[8000]; }

        // Until a time; how many rounds.
        [MethodImpl(MethodImplOptions.NoInlining)]
        static long Rounds(Stopwatch clock, long milliseconds, int keep, List<byte[]> kept)
        {
            long rounds = 0;
            for (; clock.ElapsedMilliseconds < milliseconds; rounds++)
            {
                Round();
                if (keep > 0 && rounds % keep == 0) kept.Add(Keep());
            }
            return rounds;
        }

        static long Bursts(long seconds, int on, int off, int keep, List<byte[]> kept)
        {
            var clock = Stopwatch.StartNew();
            long rounds = 0;
            for (long begins = 0; begins < seconds * 1000; begins += on + off)
            {
                int pause = (int)(begins - clock.ElapsedMilliseconds);
                if (pause > 0) Thread.Sleep(pause);
                rounds += Rounds(clock, begins + on, keep, kept);
            }
            return rounds;
        }

        static int Main(string[] arguments)
        {
            long seconds = long.Parse(arguments[1]);
            int on = int.Parse(arguments[2]), off = int.Parse(arguments[3]), keep = int.Parse(arguments[4]);
            var kept = new List<byte[]>[Threads];
            for (int i = 0; i < 50; i++) { Rounds(Stopwatch.StartNew(), 1, 1, new List<byte[]>()); Thread.Sleep(40); }
            Console.WriteLine("ready");
            while (!File.Exists(arguments[0])) Thread.Sleep(10);
            long rounds = 0;
            var clock = Stopwatch.StartNew();
            var threads = new Thread[Threads];
            for (int i = 0; i < Threads; i++)
            {
                List<byte[]> own = kept[i] = new List<byte[]>();
                threads[i] =
                    new Thread(() => Interlocked.Add(ref rounds, Bursts(seconds, on, off, keep, own)));
                threads[i].Start();
            }
            foreach (var thread in threads) thread.Join();
            long milliseconds = clock.ElapsedMilliseconds;
            if (keep > 0)
            {
                GC.Collect();
                GC.Collect();
                // The bridge looks after collections, about once a second.
                Thread.Sleep(4000);
            }
            long arrays = kept.Sum(list => list.Count);
            GC.KeepAlive(kept);
            Console.WriteLine(
                $"small={rounds * 1000L} small_bytes={rounds * 1000L * 32}"
                + $" middle={rounds * 32L} middle_bytes={rounds * 32L * 1024}"
                + $" large={rounds * 4L} large_bytes={rounds * 4L * 8024}"
                + $" kept={arrays} kept_bytes={arrays * 8024} milliseconds={milliseconds} collections={GC.CollectionCount(0)}");
            return 0;
        }
    }
}
