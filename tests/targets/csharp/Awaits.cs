// Awaits SECONDS: four seconds after its start each thread begins to wait in another way, again and again, in a
// method of its own. At the end it prints "Name seconds=S waits=N" for each: how long its waits took by its own clock.
// Sockets and children by libc: .NET 10 at hand has neither.
using System;
using System.Globalization;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using System.Threading;
using System.Threading.Tasks;

internal static class Awaits
{
    [DllImport("libc")]
    private static extern int socket(int family, int type, int protocol);

    [DllImport("libc")]
    private static extern unsafe int bind(int socket, byte* address, int length);

    [DllImport("libc")]
    private static extern int listen(int socket, int backlog);

    [DllImport("libc")]
    private static extern unsafe int accept(int socket, byte* address, int* length);

    [DllImport("libc")]
    private static extern unsafe int connect(int socket, byte* address, int length);

    [DllImport("libc")]
    private static extern unsafe int getsockname(int socket, byte* address, int* length);

    [DllImport("libc")]
    private static extern unsafe int socketpair(int family, int type, int protocol, int* ends);

    [DllImport("libc")]
    private static extern unsafe long recv(int socket, byte* to, long length, int flags);

    [DllImport("libc")]
    private static extern unsafe int pipe(int* ends);

    [DllImport("libc")]
    private static extern unsafe long read(int file, byte* to, long length);

    [DllImport("libc")]
    private static extern unsafe long write(int file, byte* from, long length);

    [DllImport("libc")]
    private static extern unsafe int poll(byte* files, ulong count, int timeout);

    [DllImport("libc")]
    private static extern unsafe int system(byte* command);

    [DllImport("libc")]
    private static extern int close(int file);

    private const int AddressLength = 16;
    private const double Rest = 0.5;

    private static readonly object door = new object();
    private static readonly SemaphoreSlim semaphore = new SemaphoreSlim(0);
    private static readonly AutoResetEvent signal = new AutoResetEvent(false);
    private static readonly int[] fifo = new int[2], sockets = new int[2];
    private static readonly byte[] address = new byte[AddressLength], command = Bytes("sleep 0.09");
    private static int listener;
    private static double begin, end;

    private static byte[] Bytes(string text)
    {
        var bytes = new byte[text.Length + 1];
        for (int i = 0; i < text.Length; i++) bytes[i] = (byte)text[i];
        return bytes;
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int WaitMonitor() { Monitor.Enter(door); return 1; }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int WaitSemaphore() { semaphore.Wait(); return 2; }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int WaitSignal() { signal.WaitOne(); return 3; }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int WaitSleep() { Thread.Sleep(50); return 4; }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int WaitTask() { Task.Delay(50).Wait(); return 5; }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static unsafe int WaitAccept() { return close(accept(listener, null, null)) + 6; }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static unsafe int WaitReceive() { byte to; return (int)recv(sockets[0], &to, 1, 0) + 7; }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static unsafe int WaitFifo() { byte to; return (int)read(fifo[0], &to, 1) + 8; }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static unsafe int WaitPoll() { return poll(null, 0, 50) + 9; }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static unsafe int WaitChild() { fixed (byte* text = command) return system(text) + 10; }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static void WaitForBegin() { while (Target.Now < begin) Thread.Sleep(100); }

    private static void Repeat(string name, Func<int> wait)
    {
        WaitForBegin();
        double waited = 0;
        int waits = 0;
        while (Target.Now < end)
        {
            double before = Target.Now;
            waits += wait() > 0 ? 1 : 0;
            waited += Target.Now - before;
            if (name != "WaitMonitor") continue;
            Monitor.Exit(door);
            Thread.Sleep(4);
        }
        Target.Say(name + " seconds=" + waited.ToString("F6", CultureInfo.InvariantCulture) + " waits=" + waits.ToString());
    }

    private static void Hold()
    {
        while (Target.Now < end + Rest)
        {
            lock (door) Thread.Sleep(400);
            Thread.Sleep(2);
        }
    }

    // Ends the waits of the others.
    private static unsafe void Give()
    {
        byte sent = 0;
        while (Target.Now < end + Rest)
        {
            Thread.Sleep(50);
            semaphore.Release();
            signal.Set();
            write(fifo[1], &sent, 1);
            write(sockets[1], &sent, 1);
            int own = socket(2, 1, 0);
            fixed (byte* to = address) connect(own, to, AddressLength);
            close(own);
        }
    }

    private static unsafe bool Prepare()
    {
        int length = AddressLength;
        address[0] = 2;
        address[4] = 127;
        address[7] = 1;
        listener = socket(2, 1, 0);
        fixed (int* ends = fifo, pair = sockets)
        fixed (byte* own = address)
            return bind(listener, own, length) == 0 && listen(listener, 8) == 0 &&
                getsockname(listener, own, &length) == 0 && pipe(ends) == 0 && socketpair(1, 1, 0, pair) == 0;
    }

    private static int Main(string[] arguments)
    {
        if (!Prepare()) return 1;
        var names = new[]
        {
            "WaitMonitor", "WaitSemaphore", "WaitSignal", "WaitSleep", "WaitTask", "WaitAccept", "WaitReceive",
            "WaitFifo", "WaitPoll", "WaitChild"
        };
        var ways = new Func<int>[]
        {
            WaitMonitor, WaitSemaphore, WaitSignal, WaitSleep, WaitTask, WaitAccept, WaitReceive, WaitFifo,
            WaitPoll, WaitChild
        };
        begin = Target.Now + 4;
        end = begin + Target.Number(arguments, 0, 10);
        var threads = new Thread[ways.Length];
        new Thread(Hold) { IsBackground = true }.Start();
        new Thread(Give) { IsBackground = true }.Start();
        for (int i = 0; i < ways.Length; i++)
        {
            string name = names[i];
            Func<int> way = ways[i];
            threads[i] = new Thread(() => Repeat(name, way));
            threads[i].Start();
        }
        Target.Ready();
        foreach (var thread in threads) thread.Join();
        return 0;
    }
}
