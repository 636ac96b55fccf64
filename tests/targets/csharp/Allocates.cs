// Allocates GO ROUNDS: once the file GO exists, a thread allocates about 32 kB of each of three classes
// in each round. Prints how many objects and how many bytes of each it made since then. Before, it has
// run long enough for its methods to be compiled for good.
using System;
using System.IO;
using System.Runtime.CompilerServices;
using System.Threading;

namespace Shop
{
    static class Allocates
    {
        // Its header, its class and two words.
        class Small { public long One = 1, Two = 2; }

        static object kept;

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void MakeSmall() { for (int i = 0; i < 1000; i++) kept = new Small(); }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void MakeMiddle() { for (int i = 0; i < 32; i++) kept = new byte[1000]; }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void MakeLarge() { for (int i = 0; i < 4; i++) kept = new long[1000]; }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void Round() { MakeSmall(); MakeMiddle(); MakeLarge(); }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void Rounds(int count) { for (int round = 0; round < count; round++) Round(); }

        static void Work(string go, int rounds)
        {
            for (int i = 0; i < 50; i++) { Rounds(20); Thread.Sleep(40); }
            Console.WriteLine("ready");
            while (!File.Exists(go)) Thread.Sleep(10);
            Rounds(rounds);
        }

        static int Main(string[] arguments)
        {
            int rounds = int.Parse(arguments[1]);
            var thread = new Thread(() => Work(arguments[0], rounds));
            thread.Start();
            thread.Join();
            Console.WriteLine(
                $"small={rounds * 1000L} small_bytes={rounds * 1000L * 32}"
                + $" middle={rounds * 32L} middle_bytes={rounds * 32L * 1024}"
                + $" large={rounds * 4L} large_bytes={rounds * 4L * 8024}");
            return 0;
        }
    }
}
