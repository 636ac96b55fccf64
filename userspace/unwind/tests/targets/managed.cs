// Every shape of frame that the CLR's compiler makes, over and over.
//
// usage: managed.dll ROUNDS [throw]        "ready" is written after so many rounds; exceptions are
//                                          thrown until then, or for ever
//        managed.dll prepare ASSEMBLY…     all methods of assemblies are compiled; nothing runs
//
// As a start-up hook it takes its arguments from STRATA_TARGET.
using System;
using System.Collections.Generic;
using System.Linq;
using System.Reflection;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using System.Threading;

unsafe struct Page { public fixed byte Bytes[5000]; }
unsafe struct Pages { public fixed byte Bytes[50000]; }
unsafe struct Many { public fixed byte Bytes[300000]; }
struct Large { public long A, B, C, D, E, F, G, H; }

abstract class Shape { public abstract int Area(int scale); }
class Square : Shape { public override int Area(int scale) => Managed.Leaf(scale) * 4; }
class Circle<T> : Shape { public T Value; public override int Area(int scale) => Managed.Leaf(scale) + typeof(T).Name.Length; }
interface IVisitor { int Visit<T>(T value); }
class Visitor : IVisitor { public int Visit<T>(T value) => Managed.Leaf(value.GetHashCode() & 1); }

static unsafe class Managed
{
    const MethodImplOptions Alone = MethodImplOptions.NoInlining;

    [DllImport("libc")] static extern int getpid();

    static volatile int sink;
    static readonly object gate = new object();

    [MethodImpl(Alone)] public static int Leaf(int a) => a * 3 + sink;
    [MethodImpl(Alone)] static int Calls(int a) => Leaf(a) + Leaf(a + 1);
    [MethodImpl(Alone)] static int Registers(int a, int b, int c, int d)
    {
        int e = Leaf(a), f = Leaf(b), g = Leaf(c), h = Leaf(d), i = Leaf(a + b), j = Leaf(c + d);
        return e * f + g * h - i * j + Leaf(e + f + g + h + i + j) + e + f + g + h + i + j;
    }
    [MethodImpl(Alone)] static long Nine(long a, long b, long c, long d, long e, long f, long g, long h, long i) =>
        a + b + c + d + e + f + g + h + i + Leaf((int)a);
    [MethodImpl(Alone)] static long StackArguments(int a) => Nine(a, a, a, a, a, a, a, a, a) + 1;
    [MethodImpl(Alone)] static int Allocates(int n) { byte* p = stackalloc byte[n]; p[n - 1] = 1; return Leaf(p[n - 1]) + p[0]; }
    [MethodImpl(Alone)] static int Fill(byte* p, int n) { p[n] = (byte)n; return p[n - 1]; }
    [MethodImpl(Alone)] static int OnePage(int n) { Page p = default; p.Bytes[n] = 1; return Leaf(p.Bytes[n]); }
    [MethodImpl(Alone)] static int SeveralPages(int n) { Pages p; return Fill(p.Bytes, n); }
    [MethodImpl(Alone)] static int ManyPages(int n) { Many p; return Fill(p.Bytes, n); }

    [MethodImpl(Alone)] static int MayThrow(int n) { if (n % 3 == 0) throw new InvalidOperationException("x"); return n; }
    [MethodImpl(Alone)] static bool Matches(int n, Exception e) => Leaf(n) != 0 && e.Message.Length == n;
    [MethodImpl(Alone)] static int Catches(int n)
    {
        try { return MayThrow(n); }
        catch (InvalidOperationException e) { return Leaf(e.Message.Length); }
        finally { sink = Leaf(1) & 1; }
    }
    [MethodImpl(Alone)] static int Filters(int n)
    {
        int k = n;
        try { k = MayThrow(n * 3); }
        catch (Exception e) when (Matches(n, e)) { k = 7; }
        catch (Exception) { k = (int)StackArguments(9); }
        return k;
    }
    [MethodImpl(Alone)] static int FiltersInALargeFrame(int n)
    {
        Pages p;
        int k = Fill(p.Bytes, n);
        try { k += MayThrow(n * 3); }
        catch (Exception e) when (Matches(n, e)) { k = 7; }
        catch (Exception) { k = 9; }
        finally { k += Fill(p.Bytes, n); }
        return k;
    }
    [MethodImpl(Alone)] static int Nests(int n)
    {
        int r = 0;
        try
        {
            try { try { r += MayThrow(n * 3); } finally { r += Leaf(r); } }
            catch (ArgumentException) { r = 3; }
            finally { try { r += MayThrow(3); } catch (Exception e) { r += e.Message.Length + (int)StackArguments(n); } }
        }
        catch (Exception e) { r += Leaf(e.Message.Length); }
        return r;
    }
    [MethodImpl(Alone)] static int FinallyOnly(int n) { int r = 0; for (int i = 0; i < n; i++) { try { r += Leaf(i); } finally { r += Calls(r); } } return r; }
    [MethodImpl(Alone)] static int Locks(int n) { lock (gate) { return Leaf(n); } }
    [MethodImpl(Alone | MethodImplOptions.Synchronized)] static int Synchronized(int n) => Leaf(n);
    [MethodImpl(Alone)] static double Floats(double a, double b) => Math.Sqrt(a) * b + Math.Sin(a + b) * Math.Cos(b);
    [MethodImpl(Alone)] static Large Copies(Large b) { b.A++; return b; }
    [MethodImpl(Alone)] static long Structs(int n) { Large b = default; b.A = n; var c = Copies(b); var d = Copies(c); return c.A + d.H + d.A; }
    [MethodImpl(Alone)] static int Tail(int n) => n <= 0 ? Leaf(n) : TailToo(n - 1, n);
    [MethodImpl(Alone)] static int TailToo(int n, int m) => Leaf(m) == 0 ? 0 : Tail(n - 1);
    [MethodImpl(Alone)] static long Loops(int n) { long s = 0; for (int i = 0; i < n; i++) { s += i ^ (s << 1); } return s; }
    [MethodImpl(Alone)] static long LoopsWithCalls(int n)
    {
        long s = 0, t = 1, u = 2, v = 3;
        for (int i = 0; i < n; i++) { s += Leaf(i); t ^= s; u += t * v; v -= Leaf((int)u); }
        return s + t + u + v;
    }
    [MethodImpl(Alone)] static long LoopsWithHandlers(int n)
    {
        long s = 0;
        for (int i = 0; i < n; i++) { try { s += Leaf(i); if (i == 30) MayThrow(3); } catch (Exception) { s += Leaf(3); } finally { s++; } }
        return s;
    }
    [MethodImpl(Alone)] static void LoopsUntilItThrows(int n) { long s = 0; int i = 0; while (true) { s += Leaf(i); if (i++ > n) throw new Exception(s.ToString()); } }
    [MethodImpl(Alone)] static int Sums(IEnumerable<int> e) { int s = 0; foreach (var x in e) s += x; return s; }
    [MethodImpl(Alone)] static T Twice<T>(T a, Func<T, T> f) => f(f(a));
    [MethodImpl(Alone)] static int Recurses(int n) => n == 0 ? Leaf(1) : Recurses(n - 1) + 1;

    static Shape[] shapes = { new Square(), new Circle<int>(), new Circle<string>() };
    static IVisitor visitor = new Visitor();

    [MethodImpl(Alone)]
    static void Round(int r)
    {
        sink = r & 1;
        Calls(r); Registers(r, 2, 3, 4); StackArguments(r); Allocates(100 + r % 100);
        OnePage(r % 100); SeveralPages(r % 100 + 1); ManyPages(r % 100 + 1);
        FinallyOnly(3); Locks(r); Synchronized(r); Floats(r, 2.5); Structs(r); Tail(20);
        Loops(200); LoopsWithCalls(50); LoopsWithHandlers(20); Recurses(50);
        Sums(new List<int> { 1, 2, 3 }); Sums(new[] { 1, 2, 3 }.Where(x => x > 1));
        Twice(3, x => x + r); Twice("a", x => x + r); getpid();
        foreach (var shape in shapes) shape.Area(r);
        visitor.Visit(r); visitor.Visit("text");
    }

    [MethodImpl(Alone)]
    static void Exceptions(int r)
    {
        Catches(r); Filters(r); Filters(1); Nests(r); FiltersInALargeFrame(r % 100 + 1); LoopsWithHandlers(40);
        try { LoopsUntilItThrows(60); } catch (Exception) { }
    }

    static IEnumerable<MethodBase> MethodsOf(string assembly)
    {
        Type[] types;
        try { types = Assembly.Load(assembly).GetTypes(); } catch (ReflectionTypeLoadException e) { types = e.Types; }
        var all = BindingFlags.DeclaredOnly | BindingFlags.Instance | BindingFlags.Static | BindingFlags.Public | BindingFlags.NonPublic;
        foreach (var type in types)
        {
            if (type == null || type.ContainsGenericParameters) continue;
            MemberInfo[] members;
            try { members = type.GetMembers(all); } catch (Exception) { continue; }
            foreach (var member in members)
                if (member is MethodBase method && !method.IsAbstract && !method.ContainsGenericParameters) yield return method;
        }
    }

    internal static void Main(string[] arguments)
    {
        if (arguments.Length > 0 && arguments[0] == "prepare")
        {
            foreach (var assembly in arguments.Skip(1))
                foreach (var method in MethodsOf(assembly))
                    try { RuntimeHelpers.PrepareMethod(method.MethodHandle); } catch (Exception) { }
            Console.WriteLine("ready");
            Thread.Sleep(Timeout.Infinite);
        }
        int warm = arguments.Length > 0 ? int.Parse(arguments[0]) : 40;
        bool throws = arguments.Length > 1;
        for (int r = 0; ; r++)
        {
            Round(r);
            if (r < warm || throws) Exceptions(r);
            if (r == warm / 2) Thread.Sleep(300);
            if (r == warm) Console.WriteLine("ready");
        }
    }
}

internal class StartupHook
{
    public static void Initialize() => Managed.Main(Environment.GetEnvironmentVariable("STRATA_TARGET").Split(' '));
}
