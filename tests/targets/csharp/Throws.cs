// Throws exceptions and counts them.
//
// Throws paced GO COUNT: four threads throw COUNT exceptions of three types each, about 500 a second,
//     once the file GO exists.
// Throws again GO COUNT: as one thread, and each is thrown again by `throw;`.
// Throws async GO COUNT: one thread waits for six async methods, of which the innermost throws.
// Throws flood GO SECONDS: four threads throw as fast as they can, until the file GO.end exists, SECONDS
//     at most.
using System;
using System.Diagnostics;
using System.IO;
using System.Runtime.CompilerServices;
using System.Threading;
using System.Threading.Tasks;

namespace Shop
{
    class Sold : Exception { public Sold(string message) : base(message) { } }

    static class Throws
    {
        // Its field of the message is null.
        class Missing : Exception { }

        static string go;
        static long[] counts = new long[3];
        static volatile bool ends;

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void ThrowSold(int number) { throw new Sold("item " + number); }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void ThrowMissing() { throw new Missing(); }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void ThrowOther() { throw new InvalidOperationException("not now"); }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void Throw(int number)
        {
            try
            {
                switch (number % 3)
                {
                    case 0: ThrowSold(number % 10); break;
                    case 1: ThrowMissing(); break;
                    default: ThrowOther(); break;
                }
            }
            catch (Exception) { Interlocked.Increment(ref counts[number % 3]); }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void Rethrow()
        {
            try { ThrowSold(0); }
            catch (Sold) { throw; }
        }

        static void WaitForGo() { while (!File.Exists(go)) Thread.Sleep(10); }

        static void Paced(int count)
        {
            WaitForGo();
            for (int number = 0; number < count; number++) { Throw(number); Thread.Sleep(2); }
        }

        static void Again(int count)
        {
            WaitForGo();
            for (int number = 0; number < count; number++)
            {
                try { Rethrow(); } catch (Sold) { Interlocked.Increment(ref counts[0]); }
                // Seven events of a class each time: slowly enough that none is left out.
                Thread.Sleep(20);
            }
        }

#if TRIMMED
        // What a compiler needs for async methods is not in this framework: what they do, by hand.
        // Not by `Task.Run`, whose execution context throws again.
        static Task Sixth()
        {
            var done = new TaskCompletionSource<bool>();
            ThreadPool.QueueUserWorkItem(_ =>
            {
                try { ThrowSold(0); } catch (Exception exception) { done.SetException(exception); }
            }, null);
            return done.Task;
        }

        static Task After(Task inner)
        {
            var done = new TaskCompletionSource<bool>();
            inner.ContinueWith(task =>
            {
                try { task.GetAwaiter().GetResult(); done.SetResult(true); }
                catch (Exception exception) { done.SetException(exception); }
            });
            return done.Task;
        }

        static Task First() { return After(After(After(After(After(Sixth()))))); }
#else
        static async Task Sixth()
        {
            await Task.Yield();
            ThrowSold(0);
        }

        static async Task Fifth() { await Sixth(); }
        static async Task Fourth() { await Fifth(); }
        static async Task Third() { await Fourth(); }
        static async Task Second() { await Third(); }
        static async Task First() { await Second(); }
#endif

        static void Async(int count)
        {
            WaitForGo();
            for (int number = 0; number < count; number++)
            {
                try { First().GetAwaiter().GetResult(); } catch (Sold) { Interlocked.Increment(ref counts[0]); }
                // Seven events of a class each time: slowly enough that none is left out.
                Thread.Sleep(20);
            }
        }

        static void Flood(double seconds)
        {
            WaitForGo();
            var clock = Stopwatch.StartNew();
            for (int number = 0; !ends && clock.Elapsed.TotalSeconds < seconds; number++) Throw(number);
        }

        static int Main(string[] arguments)
        {
            go = arguments[1];
            var number = double.Parse(arguments[2]);
            ThreadStart work = () => Paced((int)number);
            if (arguments[0] == "again") work = () => Again((int)number);
            if (arguments[0] == "async") work = () => Async((int)number);
            if (arguments[0] == "flood") work = () => Flood(number);
            var isOne = arguments[0] == "again" || arguments[0] == "async";
            var threads = new Thread[isOne ? 1 : 4];
            for (int i = 0; i < threads.Length; i++) threads[i] = new Thread(work);
            foreach (var thread in threads) thread.Start();
            Console.WriteLine("ready");
            foreach (var thread in threads)
                while (!thread.Join(20)) ends = File.Exists(go + ".end");
            Console.WriteLine($"sold={counts[0]} missing={counts[1]} other={counts[2]}");
            return 0;
        }
    }
}
