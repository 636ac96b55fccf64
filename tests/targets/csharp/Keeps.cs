// Keeps objects of several types, frees some when it is told to, and drops others all the time.
//
// Keeps kept FOLDER MEGABYTES: once the file FOLDER/go exists, a thread allocates that much of each of
//     Node (LeakNodes), byte[] (LeakArrays), byte[] beyond the limit of large objects (LeakLarge) and
//     Temporary (KeepForNow), while another allocates Churned all the time. Wants a collection and prints
//     "kept". Once FOLDER/free exists, it drops what is Temporary, wants a collection and prints "freed".
//     Once FOLDER/end exists, it prints how many bytes each has (16 or 24 of an object are its header).
// Keeps storm FOLDER SECONDS: four threads allocate as fast as they can, keep some and drop them again,
//     and now and then one wants a collection, until the file FOLDER/end exists, SECONDS at most. Prints how
//     many times each was round.
using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.IO;
using System.Reflection;
using System.Runtime.CompilerServices;
using System.Threading;

namespace Shop
{
    static class Keeps
    {
        class Node { public Node Next; public long First, Second, Third, Fourth; }
        class Temporary { public Temporary Next; public long First, Second, Third, Fourth, Fifth; }
        class Churned { public long First, Second, Third; public byte[] Text; }

        const int NodeSize = 56, TemporarySize = 64, ArraySize = 4024, LargeSize = 200024;

        static string folder;
        static Node nodes;
        static Temporary temporary;
        static readonly List<byte[]> arrays = new List<byte[]>(), large = new List<byte[]>();
        static readonly object[] last = new object[4];
        static long nodeBytes, temporaryBytes, arrayBytes, largeBytes, churned;
        static volatile bool ends;

#if TRIMMED
        // What GC.Collect calls: generation, mode, whether memory is low.
        static readonly Action<int, int, bool> collect =
            (Action<int, int, bool>)typeof(GC)
                .GetMethod("_Collect", BindingFlags.NonPublic | BindingFlags.Static)
                .CreateDelegate(typeof(Action<int, int, bool>));

        static void Collect(int generation) { collect(generation, 2, false); }
#else
        static void Collect(int generation) { GC.Collect(generation, GCCollectionMode.Forced, true); }
#endif

        static void WaitFor(string name)
        {
            while (!File.Exists(folder + "/" + name)) Thread.Sleep(10);
        }

        // Not faster than samples are taken one by one.
        static void Pace(ref long allocated, int size)
        {
            long before = allocated;
            allocated += size;
            if (before / 200000 != allocated / 200000) Thread.Sleep(1);
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void LeakNodes(long bytes)
        {
            while (nodeBytes < bytes)
            {
                nodes = new Node { Next = nodes };
                Pace(ref nodeBytes, NodeSize);
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void LeakArrays(long bytes)
        {
            while (arrayBytes < bytes)
            {
                arrays.Add(new byte[ArraySize - 24]);
                Pace(ref arrayBytes, ArraySize);
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void LeakLarge(long bytes)
        {
            while (largeBytes < bytes)
            {
                large.Add(new byte[LargeSize - 24]);
                Pace(ref largeBytes, LargeSize);
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void KeepForNow(long bytes)
        {
            while (temporaryBytes < bytes)
            {
                temporary = new Temporary { Next = temporary };
                Pace(ref temporaryBytes, TemporarySize);
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void Churn()
        {
            while (!ends)
            {
                for (int number = 0; number < 1000; number++)
                    last[0] = new Churned { Text = new byte[100] };
                churned++;
                Thread.Sleep(1);
            }
        }

        static void Keep(int megabytes)
        {
            // The pacing and the lists are compiled and as large as they get.
            arrays.Capacity = (int)(megabytes * 1000000L / ArraySize) + 1;
            Console.WriteLine("ready");
            WaitFor("go");
            var other = new Thread(Churn);
            other.Start();
            long bytes = megabytes * 1000000L;
            LeakNodes(bytes);
            KeepForNow(bytes);
            LeakLarge(bytes);
            LeakArrays(bytes);
            Thread.Sleep(100);
            Collect(2);
            Console.WriteLine("kept");
            WaitFor("free");
            temporary = null;
            Collect(2);
            Console.WriteLine("freed");
            WaitFor("end");
            ends = true;
            other.Join();
            Console.WriteLine($"nodes={nodeBytes} arrays={arrayBytes} large={largeBytes}"
                + $" temporary={temporaryBytes} churned={churned}");
        }

        class Link { public Link Next; public byte[] Text; }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static long Allocate(int thread, double seconds)
        {
            WaitFor("go");
            long rounds = 0;
            Link kept = null;
            var end = Stopwatch.StartNew();
            while (!ends && end.Elapsed.TotalSeconds < seconds)
            {
                for (int number = 0; number < 1000; number++)
                {
                    var link = new Link { Text = new byte[100 + 100 * (number % 10)] };
                    if (number % 10 == 0) { link.Next = kept; kept = link; }
                }
                if (rounds % 200 == 199) kept = null;
                if (rounds % 300 == 0) last[thread] = new byte[100000 + rounds % 1000];
                if (thread == 0 && rounds % 100 == 0) Collect((int)(rounds / 100 % 3));
                rounds++;
            }
            last[thread] = kept;
            return rounds;
        }

        static void Storm(double seconds)
        {
            var threads = new Thread[4];
            var rounds = new long[threads.Length];
            for (int number = 0; number < threads.Length; number++)
            {
                int own = number;
                threads[number] = new Thread(() => rounds[own] = Allocate(own, seconds));
                threads[number].Start();
            }
            Console.WriteLine("ready");
            foreach (var thread in threads)
                while (!thread.Join(20)) ends = File.Exists(folder + "/end");
            for (int number = 0; number < threads.Length; number++)
                Console.WriteLine($"thread{number}={rounds[number]}");
        }

        static int Main(string[] arguments)
        {
            folder = arguments[1];
            int much = int.Parse(arguments[2]);
            if (arguments[0] == "storm") { Storm(much); return 0; }
            var thread = new Thread(() => Keep(much));
            thread.Start();
            thread.Join();
            return 0;
        }
    }
}
