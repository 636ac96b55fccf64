// Waits ways GO ROUNDS: five threads wait for a handle each, in ways of their own: "manual" for a
//     ManualResetEvent, "automatic" for an AutoResetEvent, "semaphore" for a Semaphore, "slim" for a
//     SemaphoreSlim, "task" for a task. Before the file GO exists all of them wait for a sixth thread
//     ("Through"), and after that ROUNDS times for 150 ms each. Prints how often and how long each waited
//     after that, by its own clock.
// Waits flood GO SECONDS: 64 threads wait for one millisecond, again and again. Prints how often and how
//     long they waited.
using System;
using System.Diagnostics;
using System.IO;
using System.Runtime.CompilerServices;
using System.Threading;
using System.Threading.Tasks;

namespace Shop
{
    static class Waits
    {
        const int Ways = 5;
        static readonly string[] names = { "manual", "automatic", "semaphore", "slim", "task" };
        static readonly ManualResetEvent through = new ManualResetEvent(false);
        static readonly ManualResetEvent manual = new ManualResetEvent(false);
        static readonly AutoResetEvent automatic = new AutoResetEvent(false);
        static readonly Semaphore semaphore = new Semaphore(0, 1);
        static readonly SemaphoreSlim slim = new SemaphoreSlim(0);
        static volatile TaskCompletionSource<bool> task;
        static volatile int round;
        static int waiting, done;
        static readonly long[] counts = new long[Ways], ticks = new long[Ways];

        [MethodImpl(MethodImplOptions.NoInlining)]
        static int Through() { through.WaitOne(); return done; }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static int WaitManual() { manual.WaitOne(); return done; }
        [MethodImpl(MethodImplOptions.NoInlining)]
        static int WaitAutomatic() { automatic.WaitOne(); return done; }
        [MethodImpl(MethodImplOptions.NoInlining)]
        static int WaitSemaphore() { semaphore.WaitOne(); return done; }
        [MethodImpl(MethodImplOptions.NoInlining)]
        static int WaitSlim() { slim.Wait(); return done; }
        [MethodImpl(MethodImplOptions.NoInlining)]
        static int WaitTask() { task.Task.Wait(); return done; }

        static void Wait(int way, int rounds)
        {
            Through();
            for (int number = 1; number <= rounds; number++)
            {
                while (round < number) Thread.Sleep(1);
                Interlocked.Increment(ref waiting);
                long from = Stopwatch.GetTimestamp();
                if (way == 0) WaitManual();
                else if (way == 1) WaitAutomatic();
                else if (way == 2) WaitSemaphore();
                else if (way == 3) WaitSlim();
                else WaitTask();
                ticks[way] += Stopwatch.GetTimestamp() - from;
                counts[way]++;
                Interlocked.Increment(ref done);
            }
        }

        static void Wake(string go, int rounds)
        {
            while (!File.Exists(go)) Thread.Sleep(10);
            through.Set();
            for (int number = 1; number <= rounds; number++)
            {
                manual.Reset();
                task = new TaskCompletionSource<bool>();
                waiting = done = 0;
                round = number;
                while (Volatile.Read(ref waiting) < Ways) Thread.Sleep(1);
                Thread.Sleep(150);
                manual.Set();
                automatic.Set();
                semaphore.Release(1);
                slim.Release();
                task.SetResult(true);
                while (Volatile.Read(ref done) < Ways) Thread.Sleep(1);
            }
        }

        static long floods, floodTicks;

        [MethodImpl(MethodImplOptions.NoInlining)]
        static bool WaitOften(AutoResetEvent never) { return never.WaitOne(1) || done > 0; }

        static void Flood(string go, int seconds)
        {
            while (!File.Exists(go)) Thread.Sleep(10);
            var never = new AutoResetEvent(false);
            long count = 0, waited = 0, end = Stopwatch.GetTimestamp() + seconds * Stopwatch.Frequency;
            for (long from = Stopwatch.GetTimestamp(); from < end; count++)
            {
                WaitOften(never);
                long now = Stopwatch.GetTimestamp();
                waited += now - from;
                from = now;
            }
            Interlocked.Add(ref floods, count);
            Interlocked.Add(ref floodTicks, waited);
        }

        static void Run(int count, Action<int> work)
        {
            var threads = new Thread[count];
            for (int i = 0; i < count; i++)
            {
                int number = i;
                threads[i] = new Thread(() => work(number));
            }
            foreach (var thread in threads) thread.Start();
            Console.WriteLine("ready");
            foreach (var thread in threads) thread.Join();
        }

        static long Nanoseconds(long ticks) { return (long)(ticks * (1e9 / Stopwatch.Frequency)); }

        static int Main(string[] arguments)
        {
            string go = arguments[1];
            int much = int.Parse(arguments[2]);
            if (arguments[0] == "flood")
            {
                Run(64, number => Flood(go, much));
                Console.WriteLine($"waits={floods} nanoseconds={Nanoseconds(floodTicks)}");
                return 0;
            }
            Run(Ways + 1, number => { if (number < Ways) Wait(number, much); else Wake(go, much); });
            for (int way = 0; way < Ways; way++)
                Console.WriteLine($"{names[way]}={counts[way]} {names[way]}_ns={Nanoseconds(ticks[way])}");
            return 0;
        }
    }
}
