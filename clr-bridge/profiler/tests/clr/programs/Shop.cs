// The program that the tests profile: every form of method that names have, and commands on its
// standard input for what is to happen while somebody watches.
using System;
using System.Collections.Generic;
using System.Diagnostics.Tracing;
using System.Linq;
using System.Reflection;
using System.Reflection.Emit;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using System.Threading;
using System.Threading.Tasks;

namespace Shop
{
    public struct Money
    {
        public int Cents;
        public static Money operator +(Money a, Money b) => new Money { Cents = a.Cents + b.Cents };
    }

    public enum Color { Red, Green }

    public class Cart<T>
    {
        public class Line<U>
        {
            [MethodImpl(MethodImplOptions.NoInlining)]
            public U Pick(U a, T b) => a;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public T Same(T value) => value;
    }

    // Its class has a name of thousands of characters where T is a tuple of tuples.
    public class Deep<T> { public long One = 1, Two = 2, Three = 3; }

    public static class Deeply
    {
        static readonly List<object> kept = new List<object>();

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static void Allocate<T>(int count)
        {
            for (int i = 0; i < count; i++)
            {
                var deep = new Deep<T>();
                if (i % 4 == 0) kept.Add(deep);
            }
        }

        public static int Nested<T>(int depth, int count)
        {
            if (depth > 0) return Nested<ValueTuple<T, T>>(depth - 1, count);
            Allocate<T>(count);
            return typeof(Deep<T>).ToString().Length;
        }
    }

    public static class Tools
    {
        [MethodImpl(MethodImplOptions.NoInlining)]
        public static TFirst Choose<TFirst, TSecond>(TFirst a, TSecond b) => a;
    }

    public interface IPaid { int Total { get; } }

    public class Order : IPaid
    {
        int IPaid.Total => 7;

        public async Task<int> Pay()
        {
            await Task.Yield();
            return 1;
        }

        public IEnumerable<int> Lines()
        {
            yield return 1;
            yield return 2;
        }
    }

    public static class Native
    {
        [DllImport("libstrata_clr.so")]
        public static extern void SetApplicationInfoForAppDomain(
            string runtimeId, string serviceName, string environment, string version);
    }

    public static class Process
    {
        [DllImport("libc")]
        static extern int fork();

        [DllImport("libc")]
        static extern void _exit(int status);

        [DllImport("libc")]
        static extern int waitpid(int pid, out int status, int options);

        // A child that goes on in managed code, and compiles some of it.
        public static string Fork(Action inChild)
        {
            waitpid(0, out _, 1);
            int pid = fork();
            if (pid == 0)
            {
                inChild();
                _exit(7);
            }
            waitpid(pid, out int status, 0);
            return "child ended with " + (status >> 8);
        }
    }

    // Is called by the thread that changes a session of the runtime's events, and has a fault there: one that
    // it handles, and one that it does not. Or it returns late.
    class FaultyListener : EventListener
    {
        public static int Handled, Thrown;
        static int late;
        public static bool IsLate { set { late = value ? 1 : 0; } }
        string none;

        protected override void OnEventSourceCreated(EventSource source)
        {
            if (source.Name == "Microsoft-Windows-DotNETRuntime") source.EventCommandExecuted += Executed;
        }

        void Executed(object sender, EventCommandEventArgs command)
        {
            if (Interlocked.Exchange(ref late, 0) != 0) { Thrown++; Thread.Sleep(3000); return; }
            try { Handled += none.Length; }
            catch (NullReferenceException) { Handled++; }
            Thrown++;
            Thrown += none.Length;
        }
    }

    public class Program
    {
        static volatile bool stop;

        [MethodImpl(MethodImplOptions.NoInlining)]
        static int Step(int i) => i % 7;

        [MethodImpl(MethodImplOptions.NoInlining)]
        static int Burn(int count)
        {
            int sum = 0;
            for (int i = 0; i < count; i++) sum += Step(i);
            return sum;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void Forms()
        {
            new Cart<int>.Line<string>().Pick("a", 3);
            new Cart<int>.Line<Guid>().Pick(Guid.Empty, 3);
            new Cart<string>().Same("x");
            new Cart<Money>().Same(new Money());
            new Cart<Color>().Same(Color.Red);
            new Cart<KeyValuePair<int, string>>().Same(default);
            Tools.Choose(3, "x");
            Tools.Choose("a", new Money());
            var sum = new Money { Cents = 1 } + new Money { Cents = 2 };
            Func<int, int> captures = x => x + sum.Cents;
            captures(2);
            Func<int, int> captureless = x => x + 1;
            captureless(2);
            Local(3);
            ((IPaid)new Order()).Total.ToString();
            new Order().Pay().Wait();
            new Order().Lines().Sum();
            int Local(int x) => x + 1;
        }

        static Func<int, int> Dynamic(string name)
        {
            var method = new DynamicMethod(name, typeof(int), new[] { typeof(int) });
            var code = method.GetILGenerator();
            code.Emit(OpCodes.Ldarg_0);
            code.Emit(OpCodes.Ldc_I4_1);
            code.Emit(OpCodes.Add);
            code.Emit(OpCodes.Ret);
            return (Func<int, int>)method.CreateDelegate(typeof(Func<int, int>));
        }

        // A whole assembly, made at run time and collected again.
        [MethodImpl(MethodImplOptions.NoInlining)]
        static void Collectible(string name)
        {
            var assembly = AssemblyBuilder.DefineDynamicAssembly(
                new AssemblyName(name), AssemblyBuilderAccess.RunAndCollect);
            var type = assembly.DefineDynamicModule(name).DefineType("Made." + name);
            var method = type.DefineMethod(
                "Twice", MethodAttributes.Public | MethodAttributes.Static,
                typeof(int), new[] { typeof(int) });
            var code = method.GetILGenerator();
            code.Emit(OpCodes.Ldarg_0);
            code.Emit(OpCodes.Ldarg_0);
            code.Emit(OpCodes.Add);
            code.Emit(OpCodes.Ret);
            type.CreateTypeInfo().GetMethod("Twice").Invoke(null, new object[] { 4 });
        }

        static void Collect()
        {
            for (int i = 0; i < 10; i++)
            {
                GC.Collect();
                GC.WaitForPendingFinalizers();
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static long Loop(int rounds)
        {
            long sum = 0;
            for (int i = 0; i < rounds; i++) sum += (sum ^ i) % 13;
            return sum;
        }

        sealed class CollectingListener : EventListener
        {
            const EventKeywords GCHeapCollect = (EventKeywords)0x800000;

            protected override void OnEventSourceCreated(EventSource source)
            {
                if (source.Name == "Microsoft-Windows-DotNETRuntime")
                    EnableEvents(source, EventLevel.Informational, GCHeapCollect);
            }
        }

        static CollectingListener listener;
        static FaultyListener faulty;
        static volatile bool floods;
        [ThreadStatic] static object flooded;

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void Flood() { for (int i = 0; i < 100; i++) flooded = new byte[1000]; }

        public static void Main(string[] arguments)
        {
            Forms();
            Dynamic("Before")(1);
            new Thread(() => { while (!stop) { Burn(1000); Thread.Sleep(1); } })
            {
                IsBackground = true, Name = "burner"
            }.Start();
            Console.WriteLine("ready");
            string line;
            while ((line = Console.ReadLine()) != null)
            {
                var words = line.Split(' ');
                switch (words[0])
                {
                    case "forms": Forms(); break;
                    case "dynamic": Console.WriteLine(Dynamic(words[1])(1)); continue;
                    case "collectible": Collectible(words[1]); break;
                    case "collect": Collect(); break;
                    case "deep":
                        Console.WriteLine(Deeply.Nested<int>(7, int.Parse(words[1])));
                        continue;
                    case "flood":
                        // Two threads allocate as fast as they can, or no longer.
                        floods = words[1] == "on";
                        for (int i = 0; floods && i < 2; i++)
                            new Thread(() => { while (floods) Flood(); }) { IsBackground = true }.Start();
                        break;
                    case "listen":
                        // With the keyword by which tools make the runtime collect, or no longer.
                        if (words[1] == "on") listener = new CollectingListener();
                        else listener.Dispose();
                        break;
                    case "faulty":
                        faulty = new FaultyListener();
                        FaultyListener.IsLate = words.Length > 1;
                        break;
                    case "faults": Console.WriteLine(FaultyListener.Handled + " " + FaultyListener.Thrown); continue;
                    case "collections": Console.WriteLine(GC.CollectionCount(2)); continue;
                    case "osr": Loop(int.Parse(words[1])); break;
                    case "compile":
                        // Real work for the JIT compiler: expression trees are dynamic methods.
                        string letters = words.Length > 2 ? words[2] : "";
                        for (int i = 0; i < int.Parse(words[1]); i++) Dynamic("Many" + i + letters)(i);
                        break;
                    case "thread":
                        var thread = new Thread(() => Burn(10)) { Name = words[1] };
                        thread.Start();
                        thread.Join();
                        break;
                    case "service":
                        Native.SetApplicationInfoForAppDomain(
                            words[1], words[2], words[3], words[4]);
                        break;
                    case "fork":
                        _ = Dynamic("BeforeFork");
                        Console.WriteLine(Process.Fork(() => Dynamic("InChild")(1)));
                        continue;
                    case "spin":
                        var until = DateTime.UtcNow.AddMilliseconds(int.Parse(words[1]));
                        while (DateTime.UtcNow < until) Burn(1000);
                        break;
                    case "quit": stop = true; Console.WriteLine("bye"); return;
                    // The runtime's host does not unload its libraries here, which with threads that
                    // allocate crashes one exit of some hundred, with no profiler (9.0.7, glibc 2.36).
                    case "exit": Console.WriteLine("bye"); Environment.Exit(0); return;
                }
                Console.WriteLine("done");
            }
        }
    }
}

// Runs the program inside another one (DOTNET_STARTUP_HOOKS), where a runtime has no host of its own.
internal class StartupHook
{
    public static void Initialize()
    {
        Shop.Program.Main(new string[0]);
        Environment.Exit(0);
    }
}
