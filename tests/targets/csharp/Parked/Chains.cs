// Chains of plain calls above a waiting thread: without frames, with large ones, 800 deep, through
// dispatch.
using System;
using System.Collections.Generic;
using System.Runtime.CompilerServices;

namespace Parking
{
    internal static class Chains
    {
        public static IEnumerable<Spot> All()
        {
            return new[]
            {
                new Spot("monitor-wait", Frameless.ToMonitor),
                new Spot("monitor-enter", Places.MonitorEnter),
                new Spot("sleep", Frameless.ToSleep),
                new Spot("task-wait", Frameless.ToTask),
                new Spot("task-result", Frameless.ToResult),
                new Spot("read-byte", Frameless.ToPipe),
                new Spot("semaphore", Places.Semaphore),
                new Spot("signal", Places.Signal),
                new Spot("pause", Places.Pause),
                new Spot("deep", Deep.Begin),
                new Spot("big-frames", BigFrames.OnePage),
                new Spot("generic-virtual", GenericVirtual.Begin),
                new Spot("lambda", Lambdas.Begin),
                new Spot("osr", Osr.Loop),
            };
        }
    }

    // Optimised at once, so that there is no frame from the start; every method calls something
    // after the call that the chain is made of, so that none is a tail call.
    internal static class Frameless
    {
        private const MethodImplOptions Optimised =
            MethodImplOptions.NoInlining | MethodImplOptions.AggressiveOptimization;

        [MethodImpl(Optimised)]
        public static ulong ToMonitor(Spot spot, ulong x) => MonitorOne(spot, x) + 1;

        [MethodImpl(Optimised)]
        private static ulong MonitorOne(Spot spot, ulong x) => MonitorTwo(spot, x) ^ x;

        [MethodImpl(Optimised)]
        private static ulong MonitorTwo(Spot spot, ulong x) => Places.MonitorWait(spot, x) + 1;

        [MethodImpl(Optimised)]
        public static ulong ToSleep(Spot spot, ulong x) => SleepOne(spot, x, x, 1, 2, 3, 4, 5, 6) + 1;

        [MethodImpl(Optimised)]
        private static ulong SleepOne(Spot spot, ulong x, ulong y, ulong a, ulong b, ulong c, ulong d, ulong e,
            ulong f) => Places.Sleep(spot, x + f) + (a ^ b ^ c ^ d ^ e ^ y);

        [MethodImpl(Optimised)]
        public static ulong ToTask(Spot spot, ulong x) => TaskOne(spot, x) + 1;

        [MethodImpl(Optimised)]
        private static ulong TaskOne(Spot spot, ulong x) => Places.TaskWait(spot, x) ^ (x + 5);

        [MethodImpl(Optimised)]
        public static ulong ToResult(Spot spot, ulong x) => Places.TaskResult(spot, x) + 1;

        [MethodImpl(Optimised)]
        public static ulong ToPipe(Spot spot, ulong x) => PipeOne(spot, ref x) + x;

        [MethodImpl(Optimised)]
        private static ulong PipeOne(Spot spot, ref ulong x)
        {
            x = Places.ReadByte(spot, x) + 1;
            return x;
        }
    }

    internal static class Deep
    {
        [MethodImpl(MethodImplOptions.NoInlining)]
        public static ulong Begin(Spot spot, ulong x) => StepA(spot, 800, x) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong StepA(Spot spot, int depth, ulong x) => StepB(spot, depth - 1, x) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong StepB(Spot spot, int depth, ulong x)
        {
            return (depth > 1 ? StepA(spot, depth - 1, x) : Places.MonitorWait(spot, x)) + 3;
        }
    }

    internal static class BigFrames
    {
        private unsafe struct Page
        {
            public fixed ulong Words[700];
        }

        private unsafe struct Pages
        {
            public fixed ulong Words[3000];
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static unsafe ulong OnePage(Spot spot, ulong x)
        {
            Page page;
            page.Words[x % 700] = x;
            return SixPages(spot, x) + page.Words[x % 699];
        }

        [MethodImpl(MethodImplOptions.NoInlining | MethodImplOptions.AggressiveOptimization)]
        private static unsafe ulong SixPages(Spot spot, ulong x)
        {
            Pages pages;
            pages.Words[x % 3000] = x;
            return Allocates(spot, x, (int)(x % 500) + 600) + pages.Words[x % 2999];
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static unsafe ulong Allocates(Spot spot, ulong x, int length)
        {
            ulong* words = stackalloc ulong[length];
            words[length - 1] = x;
            return Places.Sleep(spot, words[length - 1]) + words[0];
        }
    }

    internal static class GenericVirtual
    {
        private abstract class Shape
        {
            public abstract ulong Turn<T>(Spot spot, ulong x);
        }

        private sealed class Circle : Shape
        {
            [MethodImpl(MethodImplOptions.NoInlining)]
            public override ulong Turn<T>(Spot spot, ulong x) => Box<T>.Open<object>(spot, x) + 1;
        }

        private static class Box<T>
        {
            [MethodImpl(MethodImplOptions.NoInlining)]
            public static ulong Open<U>(Spot spot, ulong x)
            {
                x += (ulong)typeof(U).Name.Length + (ulong)typeof(T).Name.Length;
                return Places.MonitorWait(spot, x) + 1;
            }
        }

        private static readonly Shape shape = new Circle();

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static ulong Begin(Spot spot, ulong x) => shape.Turn<string>(spot, x) + 1;
    }

    internal static class Lambdas
    {
        [MethodImpl(MethodImplOptions.NoInlining)]
        public static ulong Begin(Spot spot, ulong x)
        {
            Func<ulong, ulong> captures = y => Places.Sleep(spot, x + y) + 1;
            Func<Func<ulong, ulong>, ulong> plain = f => f(3) + 1;
            return Local(plain) + 1;

            ulong Local(Func<Func<ulong, ulong>, ulong> f) => f(captures) + x;
        }
    }

    internal static class Osr
    {
        // After 50,000 rounds the runtime has replaced the loop that is running (7 and newer).
        [MethodImpl(MethodImplOptions.NoInlining)]
        public static ulong Loop(Spot spot, ulong x)
        {
            for (int i = 0; i < 200000; i++)
            {
                x = x * 6364136223846793005UL + 1442695040888963407UL;
                if (i == 190000) x += Places.Sleep(spot, x);
            }
            return x;
        }
    }
}
