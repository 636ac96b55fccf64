// Calls with foreign frames between: LINQ, iterators, a C function that calls back.
using System;
using System.Collections.Generic;
using System.Linq;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;

namespace Small
{
    internal static class Sequences
    {
        private static readonly List<ulong> numbers = new List<ulong> { 1, 2, 3, 5, 8, 13 };

        public static void Describe()
        {
            Graph.Chain("", "SmallMethods.Round > Small.Sequences.Run");
            Graph.Chain("Small.Sequences.", "Run > Query >> Query_Lambda ~> WorkOfQuery");
            Graph.Chain("Small.Sequences.", "Run > Each > Iterate ~> WorkOfIterate");
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static ulong Run(int times, ulong x)
        {
            for (int i = 0; i < times; i++) x += Query() + Each(x);
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Query()
        {
            return numbers.Where(x => WorkOfQuery(x) != 1).Select(x => WorkOfQuery(x) + 1).ToList()[2] + 1;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Each(ulong sum)
        {
            foreach (ulong x in Iterate(sum)) sum += x;
            return sum;
        }

        private static IEnumerable<ulong> Iterate(ulong x)
        {
            for (int i = 0; i < 10; i++) yield return WorkOfIterate(x) + 1;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong WorkOfQuery(ulong x)
        {
            Verify.Here();
            return x * 6364136223846793005UL + 1442695040888963407UL;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong WorkOfIterate(ulong x)
        {
            Verify.Here();
            return x * 6364136223846793005UL + 1442695040888963407UL;
        }
    }

    internal static class Native
    {
        [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
        private unsafe delegate int Comparison(ulong* first, ulong* second);

        [DllImport("libc")]
        private static extern unsafe void qsort(ulong* items, UIntPtr count, UIntPtr size, IntPtr compare);

        private static unsafe readonly Comparison comparison = Compare;
        private static readonly IntPtr pointer = Marshal.GetFunctionPointerForDelegate(comparison);

        public static void Describe()
        {
            Graph.Chain("", "SmallMethods.Round > Small.Native.Run");
            Graph.Chain("Small.Native.", "Run > Sort >> Compare > Work");
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static ulong Run(int times, ulong x)
        {
            for (int i = 0; i < times; i++) x += Sort(x) + 1;
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static unsafe ulong Sort(ulong x)
        {
            ulong* items = stackalloc ulong[32];
            for (int i = 0; i < 32; i++) items[i] = x = x * 6364136223846793005UL + 1442695040888963407UL;
            qsort(items, (UIntPtr)32, (UIntPtr)8, pointer);
            return items[0];
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static unsafe int Compare(ulong* first, ulong* second)
        {
            return Work(*first) < Work(*second) ? -1 : 1;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Work(ulong x)
        {
            Verify.Here();
            return x;
        }
    }
}
