// Contends GO COUNT: once the file GO exists, four threads take one lock COUNT times each and hold it for
// five milliseconds. Prints how often and how long they waited for it, as they measured it.
using System;
using System.Diagnostics;
using System.IO;
using System.Runtime.CompilerServices;
using System.Threading;

namespace Shop
{
    static class Contends
    {
        static readonly object door = new object();
        static string go;
        static long waits, ticks;

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void Enter()
        {
            long start = Stopwatch.GetTimestamp();
            Monitor.Enter(door);
            long waited = Stopwatch.GetTimestamp() - start;
            // Less is no wait: the lock was free.
            if (waited > Stopwatch.Frequency / 1000) { waits++; ticks += waited; }
        }

        static void Work(int count)
        {
            while (!File.Exists(go)) Thread.Sleep(10);
            for (int number = 0; number < count; number++)
            {
                Enter();
                try { Thread.Sleep(5); }
                finally { Monitor.Exit(door); }
            }
        }

        static int Main(string[] arguments)
        {
            go = arguments[0];
            int count = int.Parse(arguments[1]);
            var threads = new Thread[4];
            for (int i = 0; i < threads.Length; i++) threads[i] = new Thread(() => Work(count));
            foreach (var thread in threads) thread.Start();
            Console.WriteLine("ready");
            foreach (var thread in threads) thread.Join();
            long nanoseconds = (long)(ticks * (1e9 / Stopwatch.Frequency));
            Console.WriteLine($"waits={waits} nanoseconds={nanoseconds}");
            return 0;
        }
    }
}
