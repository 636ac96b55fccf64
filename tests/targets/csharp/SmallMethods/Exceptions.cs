// Exceptions in flight: filters, finally and catch blocks run above the code that threw.
using System;
using System.Runtime.CompilerServices;

namespace Small
{
    internal static class Exceptions
    {
        private static ulong sink;

        public static void Describe()
        {
            Graph.Chain("", "SmallMethods.Round > Small.Exceptions.Run");
            Graph.Chain("Small.Exceptions.", "Run > Outer > Middle > Inner > Thrower > Work");
            Graph.Chain("Small.Exceptions.", "Outer > Filter > WorkOfFilter");
            Graph.Chain("Small.Exceptions.", "Middle > Finally > WorkOfFinally");
            Graph.Chain("Small.Exceptions.", "Outer > Catch > ThrowerInCatch > WorkInCatch");
            Graph.Chain("Small.Exceptions.", "Catch > CatchAgain > WorkOfCatch");
            Graph.Above("Small.Exceptions.Thrower", "Small.Exceptions.Outer");
            Graph.Above("Small.Exceptions.Thrower", "Small.Exceptions.Middle");
            Graph.Above("Small.Exceptions.ThrowerInCatch", "Small.Exceptions.Catch");
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static ulong Run(int times, ulong x)
        {
            for (int i = 0; i < times; i++) x += Outer(x | 2) + 1;
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Outer(ulong x)
        {
            try
            {
                return Middle(x) + 1;
            }
            catch (InvalidOperationException) when (Filter(x))
            {
                return Catch(x) + 1;
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Middle(ulong x)
        {
            try
            {
                return Inner(x) + 1;
            }
            finally
            {
                sink += Finally(x);
            }
        }

        // Small and without a frame: an exception passes through it.
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Inner(ulong x) => Thrower(x) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Thrower(ulong x)
        {
            x = Work(x);
            if (x != 1) throw new InvalidOperationException("thrown by Thrower");
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static bool Filter(ulong x) => WorkOfFilter(x) != 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Finally(ulong x) => WorkOfFinally(x) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Catch(ulong x)
        {
            try
            {
                return ThrowerInCatch(x) + 1;
            }
            catch (ArgumentException)
            {
                return CatchAgain(x) + 1;
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong ThrowerInCatch(ulong x)
        {
            x = WorkInCatch(x);
            if (x != 1) throw new ArgumentException("thrown by ThrowerInCatch");
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong CatchAgain(ulong x) => WorkOfCatch(x) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Work(ulong x)
        {
            Verify.Here();
            return x * 6364136223846793005UL + 1442695040888963407UL | 2;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong WorkInCatch(ulong x)
        {
            Verify.Here();
            return x * 6364136223846793005UL + 1442695040888963407UL | 2;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong WorkOfFilter(ulong x)
        {
            Verify.Here();
            for (int i = 0; i < 20000; i++) x = x * 6364136223846793005UL + 1442695040888963407UL;
            return x | 2;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong WorkOfFinally(ulong x)
        {
            Verify.Here();
            for (int i = 0; i < 20000; i++) x = x * 6364136223846793005UL + 1442695040888963407UL;
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong WorkOfCatch(ulong x)
        {
            Verify.Here();
            for (int i = 0; i < 20000; i++) x = x * 6364136223846793005UL + 1442695040888963407UL;
            return x;
        }
    }
}
