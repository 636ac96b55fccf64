// OnOffServer SOCKET: a server on a Unix socket with a thread for each connection. "GET /burns" is answered
// after 100 ms of work, "GET /waits" after Task.Delay(100).Wait(). Sockets by libc: .NET 10 at hand has none.
using System;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using System.Threading;
using System.Threading.Tasks;

internal static class OnOffServer
{
    [DllImport("libc")]
    private static extern int socket(int family, int type, int protocol);

    [DllImport("libc")]
    private static extern unsafe int bind(int socket, byte* address, uint length);

    [DllImport("libc")]
    private static extern int listen(int socket, int backlog);

    [DllImport("libc")]
    private static extern unsafe int accept(int socket, byte* address, uint* length);

    [DllImport("libc")]
    private static extern unsafe long read(int file, byte* to, long length);

    [DllImport("libc")]
    private static extern unsafe long write(int file, byte* from, long length);

    private static readonly byte[] answer = Bytes("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    private static double sink;

    private static byte[] Bytes(string text)
    {
        var bytes = new byte[text.Length];
        for (int i = 0; i < bytes.Length; i++) bytes[i] = (byte)text[i];
        return bytes;
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static void Burns()
    {
        double until = Target.Now + 0.1, sum = 0;
        while (Target.Now < until)
            for (int i = 1; i < 1000; i++) sum += Math.Sqrt(i);
        sink = sum;
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static void Waits()
    {
        Task.Delay(100).Wait();
    }

    private static unsafe void Serve(int connection)
    {
        byte* request = stackalloc byte[256];
        while (read(connection, request, 256) > 5)
        {
            if (request[5] == 'b') Burns();
            else Waits();
            fixed (byte* from = answer) write(connection, from, answer.Length);
        }
    }

    private static unsafe int Main(string[] arguments)
    {
        int listener = socket(1, 1, 0);
        byte* address = stackalloc byte[110];
        for (int i = 0; i < 110; i++) address[i] = 0;
        address[0] = 1;
        for (int i = 0; i < arguments[0].Length; i++) address[2 + i] = (byte)arguments[0][i];
        if (bind(listener, address, 110) != 0 || listen(listener, 16) != 0) return 1;
        Target.Ready();
        while (true)
        {
            int connection = accept(listener, null, null);
            new Thread(() => Serve(connection)) { IsBackground = true }.Start();
        }
    }
}
