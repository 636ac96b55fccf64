// Requests FOLDER SECONDS: a server with four connections, and its clients, which measure how long each request
// takes. FOLDER/rate has the requests a second of all connections together, at irregular times; 0: each client
// asks again as soon as it has its answer. To FOLDER/log go two doubles for each request: when it was answered
// (CLOCK_MONOTONIC) and the seconds since it was due, so that those that a pause has delayed count with all of
// their delay. Sockets by libc: .NET 10 at hand has none.
using System;
using System.Collections.Generic;
using System.Globalization;
using System.IO;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using System.Text;
using System.Threading;

internal static class Requests
{
    private struct Timespec { public long Seconds, Nanoseconds; }

    [DllImport("libc")]
    private static extern unsafe int socketpair(int family, int type, int protocol, int* ends);

    [DllImport("libc")]
    private static extern unsafe long read(int file, byte* to, long length);

    [DllImport("libc")]
    private static extern unsafe long write(int file, byte* from, long length);

    [DllImport("libc")]
    private static extern unsafe int clock_nanosleep(int clock, int flags, Timespec* until, Timespec* left);

    private const int Connections = 4, Items = 24, Baskets = 24, Room = 1 << 16;
    private const int Monotonic = 1, UntilThen = 1;

    private sealed class Refused : Exception { public Refused(string message) : base(message) { } }

    private sealed class Item { public string Name; public int Count; public Item Next; }

    private static readonly object door = new object();
    private static readonly Dictionary<string, int> stock = new Dictionary<string, int>();
    private static readonly string[] fruits = { "apple", "pear", "plum", "fig", "quince" };
    // Seconds between two requests of a connection.
    private static double interval;
    private static volatile bool hasEnded;

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static Item Parse(string request)
    {
        Item first = null;
        int from = request.IndexOf('?') + 1;
        foreach (string part in request.Substring(from, request.IndexOf(' ', from) - from).Split('&'))
        {
            int at = part.IndexOf('=');
            first = new Item { Name = part.Substring(0, at), Count = int.Parse(part.Substring(at + 1)), Next = first };
        }
        return first;
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int Take(Item item)
    {
        lock (door)
        {
            stock.TryGetValue(item.Name, out int left);
            stock[item.Name] = left - item.Count;
            return left;
        }
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static void Refuse(int number) { throw new Refused("request " + (number % 8)); }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static string Answer(string request, int number)
    {
        var text = new StringBuilder();
        for (int basket = 0; basket < Baskets; basket++)
        {
            text.Clear();
            for (Item item = Parse(request); item != null; item = item.Next)
                text.Append(item.Name).Append(':').Append(Take(item)).Append(';');
        }
        if (number % 200 == 199) Refuse(number);
        return text.ToString();
    }

    // A thread for each connection.
    private static unsafe void Serve(int connection)
    {
        byte* buffer = stackalloc byte[4096];
        long length;
        for (int number = 0; (length = read(connection, buffer, 4096)) > 0; number++)
        {
            string body;
            try { body = "HTTP/1.1 200 OK\r\n\r\n" + Answer(Encoding.UTF8.GetString(buffer, (int)length), number); }
            catch (Refused) { body = "HTTP/1.1 409 Conflict\r\n\r\n"; }
            byte[] bytes = Encoding.UTF8.GetBytes(body);
            fixed (byte* from = bytes) write(connection, from, Math.Min(bytes.Length, 4096));
        }
    }

    private sealed class Client
    {
        private readonly int connection;
        private readonly byte[] request;
        private readonly double[] log = new double[2 * Room];
        private int made, saved;

        public Client(int connection)
        {
            this.connection = connection;
            var text = new StringBuilder("GET /basket?");
            for (int i = 0; i < Items; i++)
                text.Append(i > 0 ? "&" : "").Append(fruits[i % fruits.Length]).Append('=').Append(i % 7);
            request = Encoding.UTF8.GetBytes(text.Append(" HTTP/1.1\r\n\r\n").ToString());
        }

        private static unsafe void SleepUntil(double time)
        {
            Timespec until;
            until.Seconds = (long)time;
            until.Nanoseconds = (long)((time - until.Seconds) * 1e9);
            clock_nanosleep(Monotonic, UntilThen, &until, null);
        }

        public unsafe void Run()
        {
            var random = new Random(connection);
            byte* answer = stackalloc byte[4096];
            double due = Target.Now;
            while (!hasEnded)
            {
                double mean = Volatile.Read(ref interval);
                due = mean > 0 ? due + mean * (0.5 + random.NextDouble()) : Target.Now;
                if (due > Target.Now) SleepUntil(due);
                fixed (byte* from = request) write(connection, from, request.Length);
                if (read(connection, answer, 4096) <= 0) return;
                double now = Target.Now;
                int at = made % Room * 2;
                log[at] = now;
                log[at + 1] = now - due;
                Volatile.Write(ref made, made + 1);
            }
        }

        public void Save(BinaryWriter to)
        {
            for (int end = Volatile.Read(ref made); saved != end; saved++)
            {
                to.Write(log[saved % Room * 2]);
                to.Write(log[saved % Room * 2 + 1]);
            }
        }
    }

    private static void ReadRate(string file)
    {
        double rate = double.Parse(File.ReadAllText(file), CultureInfo.InvariantCulture);
        Volatile.Write(ref interval, rate > 0 ? Connections / rate : 0);
    }

    private static unsafe int Main(string[] arguments)
    {
        string rate = Path.Combine(arguments[0], "rate");
        ReadRate(rate);
        var clients = new List<Client>();
        int* ends = stackalloc int[2];
        for (int i = 0; i < Connections; i++)
        {
            if (socketpair(1, 1, 0, ends) != 0) return 1;
            int served = ends[0];
            var client = new Client(ends[1]);
            clients.Add(client);
            new Thread(() => Serve(served)) { IsBackground = true }.Start();
            new Thread(client.Run) { IsBackground = true }.Start();
        }
        Target.Ready();
        double end = Target.Now + Target.Number(arguments, 1, 5);
        var log = new FileStream(Path.Combine(arguments[0], "log"), FileMode.Create, FileAccess.Write, FileShare.Read);
        using (var writer = new BinaryWriter(log))
        {
            while (Target.Now < end)
            {
                Thread.Sleep(100);
                ReadRate(rate);
                foreach (Client client in clients) client.Save(writer);
                writer.Flush();
            }
        }
        hasEnded = true;
        return 0;
    }
}
