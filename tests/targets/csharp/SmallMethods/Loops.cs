// Methods that are entered once and loop: the runtime replaces them while they run (7 and newer;
// older ones compile them optimised at once).
using System.Runtime.CompilerServices;
using System.Threading;

namespace Small
{
    internal static class OsrLoops
    {
        private struct Large
        {
            public ulong First;
            public ulong Second;
            public ulong Third;
        }

        private static ulong sink;

        public static void Describe()
        {
            Graph.Root("Small.OsrLoops.Start");
            Graph.Chain("Small.OsrLoops.", "Start > Plain > Called > WorkOfCalled");
            Graph.Chain("Small.OsrLoops.", "Start > WithLocals > ByReference > WorkOfReference");
            Graph.Chain("Small.OsrLoops.", "Start > Protected > Guarded > WorkOfGuarded");
            // Its time is its own: the innermost frame is the replaced method.
            Graph.Chain("Small.OsrLoops.", "Start > Generic > Spins");
        }

        // In turns, each a tenth of the time that is left, so that no method is entered often.
        public static void Start(object end)
        {
            double last = (double)end;
            sink += Plain(Target.Now + (last - Target.Now) / 4) + 1;
            sink += WithLocals(Target.Now + (last - Target.Now) / 3) + 1;
            sink += Protected(Target.Now + (last - Target.Now) / 2) + 1;
            sink += Generic<int>(Target.Now + (last - Target.Now) / 2, 1) + 1;
            sink += Generic<Large>(last, 2) + 1;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Plain(double end)
        {
            ulong x = 1;
            for (int i = 0; ; i++)
            {
                x += Called(x) + 1;
                if (i % 16384 == 0)
                {
                    Thread.Sleep(1);
                    if (Target.Now > end) return x;
                }
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Called(ulong x) => WorkOfCalled(x) + 1;

        // Structures whose address is taken stay in the frame that the first version of it made.
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong WithLocals(double end)
        {
            var large = new Large { First = 1, Second = 2, Third = 3 };
            for (int i = 0; ; i++)
            {
                ByReference(ref large);
                if (i % 16384 == 0)
                {
                    Thread.Sleep(1);
                    if (Target.Now > end) return large.First;
                }
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void ByReference(ref Large large)
        {
            large.First += WorkOfReference(large.First + large.Third) + large.Second;
        }

        // A loop inside a protected region.
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Protected(double end)
        {
            ulong x = 1;
            try
            {
                for (int i = 0; ; i++)
                {
                    x += Guarded(x) + 1;
                    if (i % 16384 == 0)
                    {
                        Thread.Sleep(1);
                        if (Target.Now > end) return x;
                    }
                }
            }
            finally
            {
                sink += x;
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Guarded(ulong x) => WorkOfGuarded(x) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Generic<T>(double end, ulong x)
        {
            for (int i = 0; ; i++)
            {
                x = x * 6364136223846793005UL + (ulong)i;
                if (i % 200000 == 0)
                {
                    x += Spins(x) + 1;
                    Thread.Sleep(1);
                    if (Target.Now > end) return x + (ulong)typeof(T).Name.Length;
                }
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Spins(ulong x)
        {
            Verify.Here();
            return x * 6364136223846793005UL + 1442695040888963407UL;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong WorkOfCalled(ulong x)
        {
            Verify.Here();
            return x * 6364136223846793005UL + 1442695040888963407UL;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong WorkOfReference(ulong x)
        {
            Verify.Here();
            return x * 6364136223846793005UL + 1442695040888963407UL;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong WorkOfGuarded(ulong x)
        {
            Verify.Here();
            return x * 6364136223846793005UL + 1442695040888963407UL;
        }
    }
}
