// Chains with the runtime's own code between: handlers of exceptions, a C function that calls back,
// a static constructor, a task that runs in the thread that waits for it, a dynamic method.
using System;
using System.Collections.Generic;
using System.Linq;
using System.Reflection.Emit;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using System.Threading;
using System.Threading.Tasks;

namespace Parking
{
    internal static class RuntimeChains
    {
        public static IEnumerable<Spot> All()
        {
            return new[]
            {
                new Spot("in-filter", Handlers.Filter),
                new Spot("in-catch", Handlers.Catch),
                new Spot("in-finally", Handlers.Finally),
                new Spot("called-back", CalledBack.Begin),
                new Spot("static-constructor", StaticConstructor.Begin),
                new Spot("inlined-task", InlinedTask.Begin),
                new Spot("query", Query.Begin),
                new Spot("dynamic", Dynamic.Begin),
                new Spot("synchronised", Synchronised.Begin),
            };
        }
    }

    internal static class Handlers
    {
        [MethodImpl(MethodImplOptions.NoInlining)]
        public static ulong Filter(Spot spot, ulong x)
        {
            try
            {
                return Throw(x) + 1;
            }
            catch (InvalidOperationException) when (Places.Sleep(spot, x) != 1)
            {
                return x;
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static ulong Catch(Spot spot, ulong x)
        {
            try
            {
                return Throw(x) + 1;
            }
            catch (InvalidOperationException)
            {
                return Places.MonitorWait(spot, x) + 1;
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static ulong Finally(Spot spot, ulong x)
        {
            try
            {
                return Passed(spot, x) + 1;
            }
            catch (InvalidOperationException)
            {
                return x;
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Passed(Spot spot, ulong x)
        {
            try
            {
                return Throw(x) + 1;
            }
            finally
            {
                Places.Sink += Places.Sleep(spot, x) + 1;
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Throw(ulong x)
        {
            if (x != 0) throw new InvalidOperationException("on purpose");
            return x;
        }
    }

    internal static class CalledBack
    {
        [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
        private unsafe delegate int Comparison(ulong* first, ulong* second);

        [DllImport("libc")]
        private static extern unsafe void qsort(ulong* items, UIntPtr count, UIntPtr size, IntPtr compare);

        private static unsafe readonly Comparison comparison = Compare;
        private static Spot waiting;

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static unsafe ulong Begin(Spot spot, ulong x)
        {
            waiting = spot;
            ulong* items = stackalloc ulong[2];
            items[0] = x;
            items[1] = x + 1;
            IntPtr pointer = Marshal.GetFunctionPointerForDelegate(comparison);
            qsort(items, (UIntPtr)2, (UIntPtr)8, pointer);
            return items[0];
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static unsafe int Compare(ulong* first, ulong* second)
        {
            return (int)Places.MonitorWait(waiting, *first) + 1;
        }
    }

    internal static class StaticConstructor
    {
        private static Spot waiting;

        private static class Late
        {
            public static readonly ulong Value;

            static Late()
            {
                Value = Places.Sleep(waiting, 3) + 1;
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static ulong Begin(Spot spot, ulong x)
        {
            waiting = spot;
            return Late.Value + x;
        }
    }

    internal static class InlinedTask
    {
        private sealed class Scheduler : TaskScheduler
        {
            protected override void QueueTask(Task task)
            {
            }

            [MethodImpl(MethodImplOptions.NoInlining)]
            protected override bool TryExecuteTaskInline(Task task, bool wasQueued)
            {
                return TryExecuteTask(task) && !task.IsFaulted;
            }

            protected override IEnumerable<Task> GetScheduledTasks() => null;
        }

        private static readonly Action<object> body = Body;

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static ulong Begin(Spot spot, ulong x)
        {
            var task = new Task(body, spot, CancellationToken.None, TaskCreationOptions.None);
            task.Start(new Scheduler());
            task.Wait();
            return x + 1;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void Body(object spot)
        {
            Places.Sink += Places.TaskWait((Spot)spot, 1) + 1;
        }
    }

    internal static class Query
    {
        [MethodImpl(MethodImplOptions.NoInlining)]
        public static ulong Begin(Spot spot, ulong x)
        {
            return new List<ulong> { x }.Select(y => Places.Semaphore(spot, y)).ToList()[0] + 1;
        }
    }

    internal static class Dynamic
    {
        [MethodImpl(MethodImplOptions.NoInlining)]
        public static ulong Begin(Spot spot, ulong x)
        {
            var method = new DynamicMethod("Generated", typeof(ulong), new[] { typeof(Spot), typeof(ulong) },
                typeof(Dynamic).Module, true);
            ILGenerator code = method.GetILGenerator();
            code.Emit(OpCodes.Ldarg_0);
            code.Emit(OpCodes.Ldarg_1);
            code.Emit(OpCodes.Call, typeof(Dynamic).GetMethod("Target"));
            code.Emit(OpCodes.Ldarg_1);
            code.Emit(OpCodes.Add);
            code.Emit(OpCodes.Ret);
            var generated = (Chain)method.CreateDelegate(typeof(Chain));
            return generated(spot, x) + 1;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static ulong Target(Spot spot, ulong x) => Places.Signal(spot, x) + 1;
    }

    internal static class Synchronised
    {
        [MethodImpl(MethodImplOptions.NoInlining | MethodImplOptions.Synchronized)]
        public static ulong Begin(Spot spot, ulong x) => Places.Sleep(spot, x) + 1;
    }
}
