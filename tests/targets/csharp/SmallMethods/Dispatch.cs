// Calls whose target is found while they are made: generic virtual methods, interfaces, delegates;
// and calls that leave no caller behind.
using System;
using System.Runtime.CompilerServices;

namespace Small
{
    internal static class GenericVirtual
    {
        private interface IShape
        {
            ulong Area<T>(ulong x);
        }

        private abstract class Shape
        {
            public abstract ulong Turn<T>(ulong x);

            public abstract ulong Move(ulong x);
        }

        private class Circle : Shape, IShape
        {
            [MethodImpl(MethodImplOptions.NoInlining)]
            public override ulong Turn<T>(ulong x) => TurnWork(x) + (ulong)Ask(typeof(T));

            [MethodImpl(MethodImplOptions.NoInlining)]
            public override ulong Move(ulong x) => MoveWork(x) + 1;

            [MethodImpl(MethodImplOptions.NoInlining)]
            public ulong Area<T>(ulong x) => AreaWork<T>(x) + 2;
        }

        // Its generic virtual method is called on its boxed copy: through an unboxing stub.
        private struct Square : IShape
        {
            public ulong Side;

            [MethodImpl(MethodImplOptions.NoInlining)]
            public ulong Area<T>(ulong x) => SquareWork(x + Side) + 1;
        }

        private struct Empty
        {
        }

        private class Box<T>
        {
            [MethodImpl(MethodImplOptions.NoInlining)]
            public static ulong Weigh<U>(ulong x) => BoxWork(x) + (ulong)Ask(typeof(U)) + (ulong)Ask(typeof(T));
        }

        private static readonly Shape shape = new Circle();
        private static readonly IShape round = new Circle();
        private static readonly IShape angular = new Square { Side = 3 };

        public static void Describe()
        {
            Graph.Chain("", "SmallMethods.Round > Small.GenericVirtual.Run");
            Graph.Chain("Small.GenericVirtual.", "Run > Circle.Turn > TurnWork");
            Graph.Chain("Small.GenericVirtual.", "Circle.Turn > Ask");
            Graph.Chain("Small.GenericVirtual.", "Run > Circle.Move > MoveWork");
            Graph.Chain("Small.GenericVirtual.", "Run > Circle.Area > AreaWork");
            Graph.Chain("Small.GenericVirtual.", "Run > Square.Area > SquareWork");
            Graph.Chain("Small.GenericVirtual.", "Run > Box.Weigh > BoxWork");
            Graph.Chain("Small.GenericVirtual.", "Box.Weigh > Ask");
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static ulong Run(int times, ulong x)
        {
            for (int i = 0; i < times; i++)
            {
                x += shape.Turn<int>(x) + shape.Turn<string>(x) + shape.Turn<Empty>(x);
                x += shape.Move(x);
                x += round.Area<string>(x) + round.Area<long>(x) + angular.Area<object>(x);
                x += Box<string>.Weigh<object>(x) + Box<int>.Weigh<string>(x);
            }
            return x;
        }

        // Makes a generic method need its type argument.
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static int Ask(Type type)
        {
            Verify.Here();
            return type == null ? 0 : 1;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong TurnWork(ulong x)
        {
            Verify.Here();
            return x * 6364136223846793005UL + 1442695040888963407UL;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong MoveWork(ulong x)
        {
            Verify.Here();
            return x * 6364136223846793005UL + 1442695040888963407UL;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong AreaWork<T>(ulong x)
        {
            Verify.Here();
            return x * 6364136223846793005UL + 1442695040888963407UL;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong SquareWork(ulong x)
        {
            Verify.Here();
            return x * 6364136223846793005UL + 1442695040888963407UL;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong BoxWork(ulong x)
        {
            Verify.Here();
            return x * 6364136223846793005UL + 1442695040888963407UL;
        }
    }

    internal static class Delegates
    {
        private class Counter
        {
            public ulong Step;

            [MethodImpl(MethodImplOptions.NoInlining)]
            public ulong Count(ulong x) => CountWork(x + Step) + 1;
        }

        private static readonly Func<ulong, ulong> toStatic = Static;
        private static readonly Func<ulong, ulong> toInstance = new Counter { Step = 3 }.Count;
        private static readonly Func<ulong, ulong> toBoth = (Func<ulong, ulong>)First + Second;

        public static void Describe()
        {
            Graph.Chain("", "SmallMethods.Round > Small.Delegates.Run");
            Graph.Chain("Small.Delegates.", "Run > Static > StaticWork");
            Graph.Chain("Small.Delegates.", "Run > Counter.Count > CountWork");
            // The stub that calls one after the other is a frame of the runtime's.
            Graph.Chain("Small.Delegates.", "Run > First > FirstWork");
            Graph.Chain("Small.Delegates.", "Run > Second > SecondWork");
            // A delegate that is always the same is inlined from 8 on, and C# 8 cannot forbid it to a lambda.
            Graph.Chain("Small.Delegates.", "Run > Run_Lambda ~> LambdaWork");
            Graph.Chain("Small.Delegates.", "Run > Run_AnonymousMethod ~> CapturedWork");
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static ulong Run(int times, ulong x)
        {
            ulong captured = x;
            Func<ulong, ulong> lambda = y => LambdaWork(y) + 1;
            Func<ulong, ulong> closure = y => CapturedWork(y + captured) + 1;
            for (int i = 0; i < times; i++)
            {
                x += toStatic(x) + toInstance(x) + toBoth(x) + lambda(x) + closure(x);
            }
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Static(ulong x) => StaticWork(x) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong First(ulong x) => FirstWork(x) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Second(ulong x) => SecondWork(x) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong StaticWork(ulong x)
        {
            Verify.Here();
            return x * 6364136223846793005UL + 1442695040888963407UL;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong CountWork(ulong x)
        {
            Verify.Here();
            return x * 6364136223846793005UL + 1442695040888963407UL;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong FirstWork(ulong x)
        {
            Verify.Here();
            return x * 6364136223846793005UL + 1442695040888963407UL;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong SecondWork(ulong x)
        {
            Verify.Here();
            return x * 6364136223846793005UL + 1442695040888963407UL;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong LambdaWork(ulong x)
        {
            Verify.Here();
            return x * 6364136223846793005UL + 1442695040888963407UL;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong CapturedWork(ulong x)
        {
            Verify.Here();
            return x * 6364136223846793005UL + 1442695040888963407UL;
        }
    }

    // Optimised code jumps to the last call of a method: the caller's frame is gone.
    internal static class TailCalls
    {
        private static ulong sink;

        public static void Describe()
        {
            Graph.Chain("", "SmallMethods.Round > Small.TailCalls.Run");
            Graph.Chain("Small.TailCalls.", "Run > Begin > Enter ~> Pass ~> Arrive > Work");
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static ulong Run(int times, ulong x)
        {
            for (int i = 0; i < times; i++) x += Begin(x) + 1;
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Begin(ulong x) => Enter(x) + 1;

        // A method that must not be inlined makes no tail call (CEEInfo::canTailCall,
        // src/coreclr/vm/jitinterface.cpp): the finally block is what keeps these from it, up to 9.
        private static ulong Enter(ulong x)
        {
            try
            {
                sink = x;
            }
            finally
            {
                sink += 7;
            }
            return Pass(x, x >> 3);
        }

        private static ulong Pass(ulong x, ulong y)
        {
            try
            {
                sink += x;
            }
            finally
            {
                sink += y;
            }
            return Arrive(y, x ^ y);
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Arrive(ulong x, ulong y) => Work(x) + Work(y);

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Work(ulong x)
        {
            Verify.Here();
            return x * 6364136223846793005UL + 1442695040888963407UL;
        }
    }
}
