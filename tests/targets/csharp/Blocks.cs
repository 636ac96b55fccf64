// Blocks held GO ROUNDS: once the file GO exists, a thread "holder" has a lock for 100 ms in each round,
//     while a thread "waiter" waits for it. Prints how often and how long the waiter waited, by its clock.
// Blocks convoy GO ROUNDS: four threads "convoy0" to "convoy3" take one lock ROUNDS times each, in methods
//     of their own, and hold it for two milliseconds. Prints for each pair how often the first waited
//     while the second had the lock, or got it first: "convoy0_convoy1=12".
// Blocks free GO ROUNDS: a thread takes a lock ROUNDS times that no other takes.
using System;
using System.Diagnostics;
using System.IO;
using System.Runtime.CompilerServices;
using System.Threading;

namespace Shop
{
    static class Blocks
    {
        static readonly object door = new object();
        static readonly object start = new object();
        static string go;

        static void WaitForGo() { while (!File.Exists(go)) Thread.Sleep(10); }

        // Held: rounds go forth and back between two threads.
        static volatile int held, tried, done;
        static long waits, ticks;

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void EnterHeld()
        {
            long from = Stopwatch.GetTimestamp();
            Monitor.Enter(door);
            waits++;
            ticks += Stopwatch.GetTimestamp() - from;
        }

        static void Hold(int rounds)
        {
            WaitForGo();
            for (int round = 1; round <= rounds; round++)
            {
                lock (door)
                {
                    held = round;
                    while (tried < round) Thread.Sleep(1);
                    Thread.Sleep(100);
                }
                while (done < round) Thread.Sleep(1);
            }
        }

        static void WaitFor(int rounds)
        {
            for (int round = 1; round <= rounds; round++)
            {
                while (held < round) Thread.Sleep(1);
                tried = round;
                EnterHeld();
                Monitor.Exit(door);
                done = round;
            }
        }

        // Convoy: who had the lock when, and who waited from when to when.
        struct Turn { public int Thread; public long From, Got, Left; }

        static Turn[] turns;
        static int count;

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void Enter0() { Monitor.Enter(door); }
        [MethodImpl(MethodImplOptions.NoInlining)]
        static void Enter1() { Monitor.Enter(door); }
        [MethodImpl(MethodImplOptions.NoInlining)]
        static void Enter2() { Monitor.Enter(door); }
        [MethodImpl(MethodImplOptions.NoInlining)]
        static void Enter3() { Monitor.Enter(door); }

        static void Convoy(int thread, int rounds)
        {
            WaitForGo();
            for (int round = 0; round < rounds; round++)
            {
                long from = Stopwatch.GetTimestamp();
                if (thread == 0) Enter0();
                else if (thread == 1) Enter1();
                else if (thread == 2) Enter2();
                else Enter3();
                int at = count++;
                turns[at].Thread = thread;
                turns[at].From = from;
                turns[at].Got = Stopwatch.GetTimestamp();
                Thread.Sleep(2);
                turns[at].Left = Stopwatch.GetTimestamp();
                Monitor.Exit(door);
                // Else it would have the lock again before the others wake up.
                Thread.Sleep(1);
            }
        }

        // Turns are in the order in which they got the lock.
        static void PrintPairs()
        {
            var pairs = new int[4, 4];
            for (int at = 0; at < count; at++)
            {
                // Less is no wait: the lock was free.
                if (turns[at].Got - turns[at].From < Stopwatch.Frequency / 1000) continue;
                int first = -1;
                for (int before = at - 1; before >= 0 && turns[before].Left > turns[at].From; before--)
                    if (turns[before].Thread != turns[at].Thread) first = turns[before].Thread;
                if (first >= 0) pairs[turns[at].Thread, first]++;
            }
            for (int waiter = 0; waiter < 4; waiter++)
                for (int owner = 0; owner < 4; owner++)
                    if (waiter != owner)
                        Console.Write($"convoy{waiter}_convoy{owner}={pairs[waiter, owner]} ");
            Console.WriteLine();
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void Free(int rounds)
        {
            WaitForGo();
            for (int round = 0; round < rounds; round++) lock (start) waits++;
        }

        static void Run(string[] names, Action[] all)
        {
            var threads = new Thread[all.Length];
            for (int i = 0; i < threads.Length; i++)
            {
                var work = all[i];
                var name = names[i];
                threads[i] = new Thread(() =>
                {
                    // The runtime reports a name when it is set, to the profilers that are there.
                    WaitForGo();
                    Thread.CurrentThread.Name = name;
                    work();
                });
            }
            foreach (var thread in threads) thread.Start();
            Console.WriteLine("ready");
            foreach (var thread in threads) thread.Join();
        }

        static int Main(string[] arguments)
        {
            go = arguments[1];
            int rounds = int.Parse(arguments[2]);
            if (arguments[0] == "held")
            {
                Run(
                    new[] { "holder", "waiter" },
                    new Action[] { () => Hold(rounds), () => WaitFor(rounds) });
                long nanoseconds = (long)(ticks * (1e9 / Stopwatch.Frequency));
                Console.WriteLine($"waits={waits} nanoseconds={nanoseconds}");
            }
            else if (arguments[0] == "convoy")
            {
                turns = new Turn[4 * rounds];
                Run(
                    new[] { "convoy0", "convoy1", "convoy2", "convoy3" },
                    new Action[]
                    {
                        () => Convoy(0, rounds), () => Convoy(1, rounds),
                        () => Convoy(2, rounds), () => Convoy(3, rounds)
                    });
                PrintPairs();
            }
            else
            {
                Run(new[] { "alone" }, new Action[] { () => Free(rounds) });
                Console.WriteLine($"rounds={waits}");
            }
            return 0;
        }
    }
}
