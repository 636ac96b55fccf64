// Async methods, lambdas and local functions, before and after they first wait. Not on the trimmed
// framework.
#if !TRIMMED
using System;
using System.Collections.Generic;
using System.Threading.Tasks;

namespace Shop
{
    internal class Payment
    {
        public async Task<int> Pay()
        {
            return Spin.Here() + await Task.FromResult(1);
        }

        public async Task<int> PayLater()
        {
            await Task.Yield();
            return Spin.Here();
        }

        public async ValueTask<int> PayCheaply()
        {
            await Task.Yield();
            return Spin.Here();
        }

        public async void Forget(TaskCompletionSource<int> done)
        {
            await Task.Yield();
            Spin.Here();
            done.SetResult(1);
        }

        public async Task<T> Generic<T>(T value)
        {
            await Task.Yield();
            Spin.Here();
            return value;
        }

        public Task<int> Lambda()
        {
            Func<Task<int>> pay = async () =>
            {
                await Task.Yield();
                return Spin.Here();
            };
            return pay();
        }

        public Task<int> Local()
        {
            return Inner();

            async Task<int> Inner()
            {
                await Task.Yield();
                return Spin.Here();
            }
        }

        public async IAsyncEnumerable<int> Stream()
        {
            await Task.Yield();
            yield return Spin.Here();
        }

        public async Task<int> Consume()
        {
            int sum = 0;
            await foreach (int x in Stream()) sum += x;
            return sum;
        }
    }

    internal static class AsyncForms
    {
        public static void Add(List<Form> forms)
        {
            var payment = new Payment();
            void Form(string name, Action run) => forms.Add(new Form(name, run));

            Form("Shop.Payment.Pay", () => payment.Pay().Wait());
            Form("Shop.Payment.PayLater", () => payment.PayLater().Wait());
            Form("Shop.Payment.PayCheaply", () => payment.PayCheaply().AsTask().Wait());
            Form("Shop.Payment.Forget", () =>
            {
                var done = new TaskCompletionSource<int>();
                payment.Forget(done);
                done.Task.Wait();
            });
            Form("Shop.Payment.Generic<T>", () => payment.Generic("").Wait());
            Form("Shop.Payment.Lambda_Lambda", () => payment.Lambda().Wait());
            Form("Shop.Payment.Local.Inner", () => payment.Local().Wait());
            Form("Shop.Payment.Stream", () => payment.Consume().Wait());
        }
    }
}
#endif
