// Plain calls: methods without a frame, with one, with a very large one, and 800 of them.
using System.Runtime.CompilerServices;

namespace Small
{
    // Small methods with one call have no frame of their own once they are optimised: an ordinary
    // one, one that saves registers, one with a local variable in memory, one that passes arguments
    // on the stack.
    internal static class Frameless
    {
        public static void Describe()
        {
            Graph.Chain("", "SmallMethods.Round > Small.Frameless.Run");
            Graph.Chain("Small.Frameless.", "Run > One > Two > Three > Work");
            Graph.Chain("Small.Frameless.", "Run > Saves > SavesMore > WorkOfSaves");
            Graph.Chain("Small.Frameless.", "Run > Local > ByReference > WorkOfLocal");
            Graph.Chain("Small.Frameless.", "Run > OnStack > ManyArguments > WorkOfMany");
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static ulong Run(int times, ulong x)
        {
            for (int i = 0; i < times; i++)
            {
                x = One(x) ^ Saves(x, 3, 5) ^ Local(x) ^ OnStack(x);
            }
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong One(ulong x) => Two(x) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Two(ulong x) => Three(x) + 2;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Three(ulong x) => Work(x) + 3;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Work(ulong x)
        {
            Verify.Here();
            return x * 6364136223846793005UL + 1442695040888963407UL;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Saves(ulong x, ulong y, ulong z) => SavesMore(x, y, z, x ^ y) + (x ^ (y + z));

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong SavesMore(ulong x, ulong y, ulong z, ulong w) =>
            WorkOfSaves(x + y) + (x ^ (y * z) ^ (w + 7));

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong WorkOfSaves(ulong x)
        {
            Verify.Here();
            for (int i = 0; i < 8; i++) x = x * 6364136223846793005UL + 1442695040888963407UL;
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Local(ulong x)
        {
            ulong local = x;
            return ByReference(ref local) + local;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong ByReference(ref ulong x)
        {
            x = WorkOfLocal(x) + 1;
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong WorkOfLocal(ulong x)
        {
            Verify.Here();
            for (int i = 0; i < 8; i++) x = x * 6364136223846793005UL + 1442695040888963407UL;
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong OnStack(ulong x) => ManyArguments(x, 1, 2, 3, 4, 5, 6, 7, 8, x) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong ManyArguments(ulong a, ulong b, ulong c, ulong d, ulong e, ulong f, ulong g,
            ulong h, ulong i, ulong j) => WorkOfMany(a + g, h) + (i ^ j);

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong WorkOfMany(ulong x, ulong y)
        {
            Verify.Here();
            return x / (y + 1);
        }
    }

    // Loops and several calls: with a frame.
    internal static class Framed
    {
        private static readonly object gate = new object();

        public static void Describe()
        {
            Graph.Chain("", "SmallMethods.Round > Small.Framed.Run");
            Graph.Chain("Small.Framed.", "Run > Loop > Branch > Even > Work");
            Graph.Chain("Small.Framed.", "Branch > Odd > Work");
            Graph.Chain("Small.Framed.", "Run > Locked > Held > WorkOfHeld");
            // The synchronisation around it is the runtime's, and may be a frame.
            Graph.Chain("Small.Framed.", "Run > Synchronised > HeldToo > WorkOfHeld");
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static ulong Run(int times, ulong x)
        {
            for (int i = 0; i < times; i++) x += Loop(x) + Locked(x) + Synchronised(x);
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Loop(ulong x)
        {
            for (int i = 0; i < 3; i++) x += Branch(x, i);
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Branch(ulong x, int i)
        {
            if ((i & 1) == 0) x += Even(x) + 1;
            else x += Odd(x) + 2;
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Even(ulong x) => Work(x) ^ Work(x + 1);

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Odd(ulong x) => Work(x) + Work(x + 2) + Work(x + 3);

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Work(ulong x)
        {
            Verify.Here();
            for (int i = 0; i < 4; i++) x = x * 6364136223846793005UL + 1442695040888963407UL;
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Locked(ulong x)
        {
            lock (gate)
            {
                return Held(x) + 1;
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining | MethodImplOptions.Synchronized)]
        private static ulong Synchronised(ulong x) => HeldToo(x) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Held(ulong x) => WorkOfHeld(x) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong HeldToo(ulong x) => WorkOfHeld(x) + 2;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong WorkOfHeld(ulong x)
        {
            Verify.Here();
            return x * 6364136223846793005UL + 1442695040888963407UL;
        }
    }

    // A frame of a page or more is probed page by page while it is made.
    internal static class BigFrames
    {
        private unsafe struct Page
        {
            public fixed ulong Words[700];
        }

        private unsafe struct Pages
        {
            public fixed ulong Words[3000];
        }

        public static void Describe()
        {
            Graph.Chain("", "SmallMethods.Round > Small.BigFrames.Run");
            Graph.Chain("Small.BigFrames.", "Run > OnePage > SixPages > Allocates > Fills > Work");
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static ulong Run(int times, ulong x)
        {
            for (int i = 0; i < times; i++) x += OnePage(x) + 1;
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static unsafe ulong OnePage(ulong x)
        {
            Page page;
            page.Words[x % 700] = x;
            return SixPages(x) + page.Words[x % 699];
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static unsafe ulong SixPages(ulong x)
        {
            Pages pages;
            pages.Words[x % 3000] = x;
            return Allocates(x, (int)(x % 500) + 600) + pages.Words[x % 2999];
        }

        // Its frame grows while it runs.
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static unsafe ulong Allocates(ulong x, int length)
        {
            ulong* words = stackalloc ulong[length];
            words[length - 1] = x;
            return Fills(words, length) + words[0];
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static unsafe ulong Fills(ulong* words, int length)
        {
            ulong x = 0;
            for (int i = 0; i < length; i += 64) x += Work(words + i) + 1;
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static unsafe ulong Work(ulong* word)
        {
            Verify.Here();
            *word = *word * 6364136223846793005UL + 1442695040888963407UL;
            return *word;
        }
    }

    // 800 frames of four methods in turn: if one were missing, two would meet that never do.
    internal static class Deep
    {
        private const int Depth = 800;

        public static void Describe()
        {
            Graph.Chain("", "SmallMethods.Round > Small.Deep.Run");
            Graph.Chain("Small.Deep.", "Run > StepA > StepB > StepC > StepD > StepA");
            Graph.Chain("Small.Deep.", "StepD > Bottom");
            Graph.Depth("Small.Deep.Bottom", "Small.Deep.Step", Depth);
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static ulong Run(int times, ulong x)
        {
            for (int i = 0; i < times; i++) x += StepA(Depth, x) + 1;
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong StepA(int depth, ulong x) => StepB(depth - 1, x) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong StepB(int depth, ulong x)
        {
            ulong below = StepC(depth - 1, x);
            return below ^ (x + (ulong)depth);
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong StepC(int depth, ulong x) => StepD(depth - 1, x) ^ x;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong StepD(int depth, ulong x)
        {
            return (depth > 1 ? StepA(depth - 1, x) : Bottom(x)) + 3;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Bottom(ulong x)
        {
            Verify.Here();
            for (int i = 0; i < 20000; i++) x = x * 6364136223846793005UL + 1442695040888963407UL;
            return x;
        }
    }
}
