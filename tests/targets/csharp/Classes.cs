// Classes GO MEGABYTES: once the file GO exists, a thread allocates about that much of each of several
// generic classes and arrays, in methods of their own. Prints how many objects of Deep, of 40 bytes each,
// it made: the name of their class has thousands of characters.
using System;
using System.Collections.Generic;
using System.IO;
using System.Runtime.CompilerServices;
using System.Threading;

namespace Shop
{
    class Outer<T>
    {
        public class Inner<U> { public long One = 1, Two = 2, Three = 3; }
    }

    struct Pair<T, U>
    {
        public T First;
        public U Second;
        public Pair(T first, U second) { First = first; Second = second; }
    }

    class Deep<T> { public long One = 1, Two = 2, Three = 3; }

    static class Classes
    {
        static object kept;

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void MakeLists(int count) { for (int i = 0; i < count; i++) kept = new List<int>[122]; }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void MakeMaps(int count)
        {
            for (int i = 0; i < count; i++) kept = new Dictionary<string, int>();
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void MakeInner(int count)
        {
            for (int i = 0; i < count; i++) kept = new Outer<int>.Inner<string>();
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void MakeTables(int count) { for (int i = 0; i < count; i++) kept = new long[11, 11][]; }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void MakeDeep<T>(int count) { for (int i = 0; i < count; i++) kept = new Deep<T>(); }

        static void Nested<T>(int depth, int count)
        {
            if (depth > 0) Nested<Pair<T, T>>(depth - 1, count);
            else MakeDeep<T>(count);
        }

        static void Work(string go, int bytes)
        {
            Nested<int>(7, 1);
            Console.WriteLine("ready");
            while (!File.Exists(go)) Thread.Sleep(10);
            MakeLists(bytes / 1000);
            MakeMaps(bytes / 80);
            MakeInner(bytes / 40);
            MakeTables(bytes / 1000);
            Nested<int>(7, bytes / 40);
        }

        static int Main(string[] arguments)
        {
            int bytes = int.Parse(arguments[1]) * 1000000;
            var thread = new Thread(() => Work(arguments[0], bytes));
            thread.Start();
            thread.Join();
            Console.WriteLine($"deep={bytes / 40} deep_bytes={(long)(bytes / 40) * 40}");
            return 0;
        }
    }
}
