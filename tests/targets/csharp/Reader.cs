// Reads a file or a socket with the framework's streams, over and over.
// usage: Reader file PATH seconds | Reader socket seconds
using System;
using System.IO;
using System.Net;
using System.Net.Sockets;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using System.Threading;

internal static class Reader
{
    private static readonly byte[] buffer = new byte[1 << 20];
    private static long total;

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static long ReadFile(Stream stream)
    {
        long sum = 0;
        for (int i = 0; i < 16; i++)
        {
            int read = stream.Read(buffer, 0, buffer.Length);
            if (read == 0) stream.Position = 0;
            sum += read;
        }
        return sum;
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static long ReadSocket(Stream stream)
    {
        long sum = 0;
        for (int i = 0; i < 16; i++) sum += stream.Read(buffer, 0, buffer.Length);
        return sum;
    }

    private static void File(string path, double seconds)
    {
        // A buffer of one byte is none: each Read is a system call.
        using (var stream = new FileStream(path, FileMode.Open, FileAccess.Read, FileShare.ReadWrite, 1))
        {
            Target.Ready();
            double end = Target.Now + seconds;
            while (Target.Now < end) total += ReadFile(stream);
        }
    }

    private static void Socket(double seconds)
    {
        using (var listener = new Socket(AddressFamily.InterNetwork, SocketType.Stream, ProtocolType.Tcp))
        using (var sender = new Socket(AddressFamily.InterNetwork, SocketType.Stream, ProtocolType.Tcp))
        {
            listener.Bind(new IPEndPoint(IPAddress.Loopback, 0));
            listener.Listen(1);
            sender.Connect(listener.LocalEndPoint);
            using (Socket receiver = Accept(listener))
            using (var stream = new NetworkStream(receiver, true))
            {
                new Thread(() => Send(sender)) { IsBackground = true }.Start();
                Target.Ready();
                double end = Target.Now + seconds;
                while (Target.Now < end) total += ReadSocket(stream);
            }
        }
    }

#if TRIMMED
    [DllImport("libc")]
    private static extern int accept(int socket, IntPtr address, IntPtr length);

    // Its own program never accepted a connection with a Socket.
    private static Socket Accept(Socket listener)
    {
        int accepted = accept((int)listener.SafeHandle.DangerousGetHandle(), IntPtr.Zero, IntPtr.Zero);
        return new Socket(new SafeSocketHandle((IntPtr)accepted, true));
    }
#else
    private static Socket Accept(Socket listener) => listener.Accept();
#endif

    private static void Send(Socket sender)
    {
        var bytes = new byte[1 << 16];
        try
        {
            while (true) sender.Send(bytes, 0, bytes.Length, SocketFlags.None);
        }
        catch (SocketException)
        {
            // The reader has had enough.
        }
    }

    private static int Main(string[] arguments)
    {
        if (arguments[0] == "file") File(arguments[1], Target.Number(arguments, 2, 5));
        else Socket(Target.Number(arguments, 1, 5));
        Target.Say("read bytes=" + total.ToString());
        Target.ReportCpu("Reader");
        return 0;
    }
}
