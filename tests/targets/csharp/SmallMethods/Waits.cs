// Task.Wait, which has no frame of its own, and code that runs inside it; async methods.
using System;
using System.Collections.Generic;
using System.Runtime.CompilerServices;
using System.Threading;
using System.Threading.Tasks;

namespace Small
{
    // Runs a task in the thread that waits for it.
    internal sealed class InlineScheduler : TaskScheduler
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

    internal static class Waits
    {
        private static readonly InlineScheduler scheduler = new InlineScheduler();
        private static readonly Action<object> body = Body;
        private static ulong result;

        public static void Describe()
        {
            Graph.Chain("", "SmallMethods.Round > Small.Waits.Run");
            Graph.Chain("", "Small.Waits.Run > Small.Waits.Waiter >> Small.InlineScheduler.TryExecuteTaskInline");
            Graph.Chain("", "Small.InlineScheduler.TryExecuteTaskInline >> Small.Waits.Body > Small.Waits.Work");
#if !TRIMMED
            Graph.Chain("Small.Waits.", "Run > Synchronously > Steps > WorkOfSteps");
            Graph.Chain("Small.Waits.", "Synchronously >> Steps");
            // The method and its state machine have one name; a later part runs on a pool thread.
            Graph.Above("Small.Waits.Steps", "Small.Waits.Steps");
            Graph.Root("Small.Waits.Steps");
#endif
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static ulong Run(int times, ulong x)
        {
            for (int i = 0; i < times; i++)
            {
                result = x;
                x += Waiter(i) + 1;
#if !TRIMMED
                if (i % 4 == 0) x += Synchronously(x) + 1;
#endif
            }
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Waiter(int i)
        {
            var task = new Task(body, null, CancellationToken.None, TaskCreationOptions.None);
            task.Start(scheduler);
            task.Wait();
            return result;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void Body(object state)
        {
            result += Work(result) + 1;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Work(ulong x)
        {
            Verify.Here();
            for (int i = 0; i < 300; i++) x = x * 6364136223846793005UL + 1442695040888963407UL;
            return x;
        }

#if !TRIMMED
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Synchronously(ulong x) => Steps(x).Result + 1;

        private static async Task<ulong> Steps(ulong x)
        {
            x += WorkOfSteps(x);
            await Task.Yield();
            x += WorkOfSteps(x);
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong WorkOfSteps(ulong x)
        {
            Verify.Here();
            for (int i = 0; i < 300; i++) x = x * 6364136223846793005UL + 1442695040888963407UL;
            return x;
        }
#endif
    }
}
