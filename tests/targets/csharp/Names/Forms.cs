// What is written by name: constructors, properties, operators, nested and generic types.
using System;
using System.Collections.Generic;
using System.Runtime.CompilerServices;

namespace Shop
{
    internal class Late
    {
        public static readonly int Value;

        static Late()
        {
            Value = Spin.Here();
        }
    }

    internal interface IPriced
    {
        void Price();

#if !TRIMMED
        // A body in an interface, from C# 8 on.
        void Discount() => Spin.Here();
#endif
    }

    internal class Order : IDisposable, IPriced
    {
        private Action changed;

        public class Line
        {
            public class Detail
            {
                public void Show() => Spin.Here();
            }

            public void Total() => Spin.Here();
        }

        public enum State
        {
            Open,
        }

        public Order()
        {
        }

        public Order(int number)
        {
            Spin.Here();
        }

        public int Total
        {
            get => Spin.Here();
            set => Spin.Here();
        }

        public int this[int index]
        {
            get => Spin.Here();
            set => Spin.Here();
        }

        public event Action Changed
        {
            add
            {
                changed += value;
                Spin.Here();
            }
            remove
            {
                changed -= value;
                Spin.Here();
            }
        }

        public void Pay(int amount, ref Order other)
        {
            Spin.Here();
        }

        void IDisposable.Dispose() => Spin.Here();

        public virtual void Price() => Spin.Here();

        public static void Static() => Spin.Here();
    }

    internal class Finalised
    {
        ~Finalised()
        {
            Spin.Here();
        }
    }

    internal struct Money
    {
        public static Money operator +(Money a, Money b)
        {
            Spin.Here();
            return a;
        }

        public static Money operator -(Money a)
        {
            Spin.Here();
            return a;
        }

        public static bool operator ==(Money a, Money b) => Spin.Here() == 1;

        public static bool operator !=(Money a, Money b) => Spin.Here() == 2;

        public static implicit operator int(Money a) => Spin.Here();

        public static explicit operator long(Money a) => Spin.Here();

        public override bool Equals(object other)
        {
            Spin.Here();
            return true;
        }

        public override int GetHashCode() => 1;
    }

    internal class Basket<TItem>
    {
        public void Add(TItem item) => Spin.Here();

        public void Convert<TOther>(TOther other) => Spin.Here();

        public class Shelf<TWood>
        {
            public void Put() => Spin.Here();
        }
    }

    internal static class Tools
    {
        public static void Pick<T0, T1>(T0 first, T1 second) => Spin.Here();

        public static void Extend(this Order order) => Spin.Here();
    }

    internal static class Forms
    {
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void Finalise()
        {
            GC.KeepAlive(new Finalised());
        }

        public static void Add(List<Form> forms)
        {
            var order = new Order();
            var money = new Money();
            void Form(string name, Action run) => forms.Add(new Form(name, run));

            Form("Shop.Order.Order", () => new Order(3));
            Form("Shop.Late.Late (static)", () => Spin.Sink += (ulong)Late.Value);
            Form("Shop.Order.Line.Total", () => new Order.Line().Total());
            Form("Shop.Order.Line.Detail.Show", () => new Order.Line.Detail().Show());
            Form("Shop.Order.Total.get", () => Spin.Sink += (ulong)order.Total);
            Form("Shop.Order.Total.set", () => order.Total = 3);
            Form("Shop.Order.this[].get", () => Spin.Sink += (ulong)order[2]);
            Form("Shop.Order.this[].set", () => order[2] = 3);
            Action nothing = () => { };
            Form("Shop.Order.Changed.add", () => order.Changed += nothing);
            Form("Shop.Order.Changed.remove", () => order.Changed -= nothing);
            Form("Shop.Order.Pay", () => order.Pay(3, ref order));
            Form("Shop.Order.System.IDisposable.Dispose", () => ((IDisposable)order).Dispose());
            Form("Shop.Order.Price", () => ((IPriced)order).Price());
#if !TRIMMED
            Form("Shop.IPriced.Discount", () => ((IPriced)order).Discount());
#endif
            Form("Shop.Order.Static", Order.Static);
            Form("Shop.Tools.Extend", () => order.Extend());
            Form("Shop.Money.operator +", () => money += money);
            Form("Shop.Money.operator -", () => money = -money);
            Form("Shop.Money.operator ==", () => Spin.Sink += money == default ? 1UL : 0);
            Form("Shop.Money.operator !=", () => Spin.Sink += money != default ? 1UL : 0);
            Form("Shop.Money.operator implicit", () => Spin.Sink += (ulong)(int)money);
            Form("Shop.Money.operator explicit", () => Spin.Sink += (ulong)(long)money);
            Form("Shop.Money.Equals", () => money.Equals(null));
            Form("Shop.Basket<System.Int32>.Add", () => new Basket<int>().Add(3));
            Form("Shop.Basket<TItem>.Add", () => new Basket<string>().Add(""));
            Form("Shop.Basket<System.Int32>.Convert<System.Int64>", () => new Basket<int>().Convert(3L));
            Form("Shop.Basket<TItem>.Convert<TOther>", () => new Basket<string>().Convert(""));
            Form("Shop.Basket<TItem>.Shelf<System.Byte>.Put", () => new Basket<string>.Shelf<byte>().Put());
            Form("Shop.Tools.Pick<System.Int32, T1>", () => Tools.Pick(3, ""));
            Form("System.Collections.Generic.List<System.Int32>.ForEach",
                () => new List<int> { 1 }.ForEach(x => Spin.Here()));
            Form("System.Collections.Generic.List<T>.ForEach",
                () => new List<string> { "" }.ForEach(x => Spin.Here()));
            Form("Shop.Finalised.Finalize", () =>
            {
                Finalise();
                GC.Collect();
                GC.WaitForPendingFinalizers();
            });
        }
    }
}
