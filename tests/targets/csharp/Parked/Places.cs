// Where threads wait: every way that a test wants to see from outside.
using System.IO;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using System.Threading;
using System.Threading.Tasks;
using Microsoft.Win32.SafeHandles;

namespace Parking
{
    internal static class Places
    {
        // Held by the main thread.
        public static readonly object Contended = new object();
        public static ulong Sink;

        private static readonly object gate = new object();
        private static readonly Task<int> never = new TaskCompletionSource<int>().Task;
        private static readonly SemaphoreSlim semaphore = new SemaphoreSlim(0);
        private static readonly ManualResetEvent signal = new ManualResetEvent(false);
        private static FileStream pipe;

        [DllImport("libc")]
        private static extern unsafe int pipe2(int* ends, int flags);

        [DllImport("libc")]
        private static extern int pause();

        public static unsafe void Prepare()
        {
            int* ends = stackalloc int[2];
            pipe2(ends, 0);
            pipe = new FileStream(new SafeFileHandle((System.IntPtr)ends[0], true), FileAccess.Read, 1);
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static ulong MonitorWait(Spot spot, ulong x)
        {
            lock (gate)
            {
                spot.Note();
                while (x != 0) Monitor.Wait(gate);
            }
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static ulong MonitorEnter(Spot spot, ulong x)
        {
            spot.Note();
            lock (Contended) return x + 1;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static ulong Sleep(Spot spot, ulong x)
        {
            spot.Note();
            Thread.Sleep(-1);
            return x + 1;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static ulong TaskWait(Spot spot, ulong x)
        {
            spot.Note();
            never.Wait();
            return x + 1;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static ulong TaskResult(Spot spot, ulong x)
        {
            spot.Note();
            return x + (ulong)never.GetAwaiter().GetResult();
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static ulong ReadByte(Spot spot, ulong x)
        {
            spot.Note();
            return x + (ulong)pipe.ReadByte();
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static ulong Semaphore(Spot spot, ulong x)
        {
            spot.Note();
            semaphore.Wait();
            return x + 1;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static ulong Signal(Spot spot, ulong x)
        {
            spot.Note();
            signal.WaitOne();
            return x + 1;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static ulong Pause(Spot spot, ulong x)
        {
            spot.Note();
            return x + (ulong)pause();
        }
    }
}
