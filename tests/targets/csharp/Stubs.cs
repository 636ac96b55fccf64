// Calls that lead through code which the runtime makes and which is no method: write barriers,
// interface and virtual dispatch, shared generics, delegates to static methods, type tests.
// usage: Stubs seconds
using System;
using System.Collections.Generic;
using System.Runtime.CompilerServices;

internal static class Stubs
{
    private interface IShape
    {
        int Area(int x);
    }

    private sealed class Square : IShape
    {
        [MethodImpl(MethodImplOptions.NoInlining)]
        public int Area(int x) => x;
    }

    private sealed class Circle : IShape
    {
        [MethodImpl(MethodImplOptions.NoInlining)]
        public int Area(int x) => x + 1;
    }

    private sealed class Line : IShape
    {
        [MethodImpl(MethodImplOptions.NoInlining)]
        public int Area(int x) => x + 2;
    }

    private sealed class Node
    {
        public Node Next;
        public object Value;
    }

    private class Shared<T> where T : class
    {
        [MethodImpl(MethodImplOptions.NoInlining)]
        public static bool Is(object value) => value is T;

        [MethodImpl(MethodImplOptions.NoInlining)]
        public T[] Make() => new T[1];
    }

    private static readonly IShape[] same = { new Square(), new Square(), new Square() };
    private static readonly IShape[] different = { new Square(), new Circle(), new Line() };
    private static readonly Node[] nodes = { new Node(), new Node(), new Node(), new Node() };
    private static int sink;

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static void Store(int turn)
    {
        for (int i = 0; i < 1000; i++)
        {
            nodes[i & 3].Next = nodes[(i + turn) & 3];
            nodes[i & 3].Value = nodes;
        }
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int AreaOfOneKind(IShape shape, int x) => shape.Area(x);

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int AreaOfAnyKind(IShape shape, int x) => shape.Area(x);

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int Static(int x) => x + 3;

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int Measure(int turn)
    {
        int sum = 0;
        Func<int, int> call = Static;
        for (int i = 0; i < 1000; i++)
        {
            sum += AreaOfOneKind(same[i % 3], turn);
            sum += AreaOfAnyKind(different[i % 3], turn);
            sum += call(i);
        }
        return sum;
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int Collect(int turn)
    {
        var list = new List<object>();
        var map = new Dictionary<string, object>();
        for (int i = 0; i < 100; i++)
        {
            list.Add(nodes[i & 3]);
            map[(i + turn % 7).ToString()] = list;
            sink += Shared<string>.Is(list) ? 1 : 0;
            sink += Shared<Node>.Is(nodes[i & 3]) ? 1 : 0;
            sink += new Shared<Node>().Make().Length;
        }
        return map.Count;
    }

    public static int Main(string[] arguments)
    {
        double seconds = Target.Number(arguments, 0, 3);
        Target.Ready();
        double until = Target.Now + seconds;
        for (int turn = 0; Target.Now < until; turn++)
        {
            Store(turn);
            sink += Measure(turn) + Collect(turn);
        }
        Target.ReportCpu("Stubs");
        return 0;
    }
}
