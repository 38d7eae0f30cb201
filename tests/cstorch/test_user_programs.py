"""Programs as people write them, trained on csx as on the cpu: averages, adversaries, teachers, hidden state."""

import copy

import cstorch
import pytest
import torch
import torch.nn.functional as F
from programs import batches, decay, mlp, same_as_eager, trains_as_eager
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def small(dropout=0.2):
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 4))


def train_once(model, optimizer, x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss


# -- averages of the weights -----------------------------------------------------------------------------


class Ema:
    """Keeps an average in one of the usual ways."""

    def __init__(self, kind, model):
        self.kind, self.twin = kind, copy.deepcopy(model).requires_grad_(False).eval()
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model):
        if self.kind == "lerp_":
            for kept, p in zip(self.twin.parameters(), model.parameters()):
                kept.lerp_(p, 0.1)
        elif self.kind == "copy_":
            for kept, p in zip(self.twin.parameters(), model.parameters()):
                kept.copy_(0.9 * kept + 0.1 * p)
        elif self.kind == "data":
            for kept, p in zip(self.twin.parameters(), model.parameters()):
                kept.data.mul_(0.9).add_(p.data, alpha=0.1)
        elif self.kind == "assigned data":
            for kept, p in zip(self.twin.parameters(), model.parameters()):
                kept.data = 0.9 * kept.data + 0.1 * p.data
        elif self.kind == "dict":
            for name, p in model.named_parameters():
                self.shadow[name] = 0.9 * self.shadow[name] + 0.1 * p
        elif self.kind == "state_dict":
            now = model.state_dict()
            for name, kept in self.twin.state_dict().items():
                kept.mul_(0.9).add_(now[name], alpha=0.1)
        else:
            torch._foreach_lerp_(list(self.twin.parameters()), list(model.parameters()), 0.1)


@pytest.mark.parametrize("place", ["inside", "outside"])
@pytest.mark.parametrize("kind", ["lerp_", "copy_", "data", "assigned data", "dict", "state_dict", "foreach"])
def test_an_average_of_the_weights(csx, kind, place):
    def train(side):
        model = small().to(side.device)
        ema = Ema(kind, model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, decay)

        @side.trace
        def step(x):
            side.see(train_once(model, optimizer, x), ema.twin(x))
            if place == "inside":
                ema.update(model)

        for x in batches(5, 4, 8):
            step(x)
            if place == "outside":
                ema.update(model)
            schedule.step()
        return model, ema.twin, ema.shadow, optimizer

    assert same_as_eager(train).count == 1


def test_an_averaged_model_outside_the_step(csx):
    def train(side):
        model = small().to(side.device)
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        step = side.trace(lambda x: side.see(train_once(model, optimizer, x)))
        evaluate = side.trace(lambda x: side.see(average(x)))
        for x in batches(5, 4, 8):
            model.train()
            step(x)
            average.update_parameters(model)
            average.eval()
            evaluate(x)
        return model, average

    same_as_eager(train)


# -- two optimizers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["discriminator first", "generator first"])
def test_a_gan_in_one_step(csx, order):
    def train(side):
        make = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 8)).to(side.device)
        judge = nn.Sequential(nn.Linear(8, 8), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Linear(8, 1)).to(side.device)
        makes = torch.optim.Adam(make.parameters(), lr=0.01, betas=(0.5, 0.999))
        judges = torch.optim.Adam(judge.parameters(), lr=0.02, betas=(0.5, 0.999))
        schedules = [torch.optim.lr_scheduler.LambdaLR(o, decay) for o in (makes, judges)]
        loss = nn.BCEWithLogitsLoss()

        def judge_step(x, fake, ones):
            judges.zero_grad()
            real = loss(judge(x), ones)
            real.backward()
            made = loss(judge(fake.detach()), 0 * ones)
            made.backward()
            judges.step()
            return real + made

        def make_step(fake, ones):
            makes.zero_grad()
            fooled = loss(judge(fake), ones)
            fooled.backward()
            makes.step()
            return fooled

        @side.trace
        def step(x):
            ones = torch.ones(4, 1, device=x.device)
            fake = make(torch.randn(4, 3, device=x.device))
            if order == "discriminator first":
                side.see(judge_step(x, fake, ones), make_step(fake, ones))
            else:
                side.see(make_step(fake, ones), judge_step(x, fake, ones))

        for x in batches(6, 4, 8):
            step(x.to(side.device))
            for schedule in schedules:
                schedule.step()
        return make, judge, makes, judges

    same_as_eager(train)


# -- parametrizations ------------------------------------------------------------------------------------

PARAMETRIZED = {
    "weight_norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 4)),
    "spectral_norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 4)),
    "orthogonal": lambda: nn.utils.parametrizations.orthogonal(nn.Linear(8, 4)),
    "old weight_norm": lambda: nn.utils.weight_norm(nn.Linear(8, 4)),
    "old weight_norm, convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 4)), nn.utils.weight_norm(nn.Conv1d(2, 3, 3)), nn.ReLU()
    ),
    "old spectral_norm": lambda: nn.utils.spectral_norm(nn.Linear(8, 4)),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("name", PARAMETRIZED)
def test_a_parametrized_layer(csx, name, warm):
    def make():
        model = nn.Sequential(PARAMETRIZED[name](), nn.Dropout(0.2))
        if warm:  # a forward pass before the move leaves weights with a history
            model(torch.ones(3, 8))
        return model

    def body(side, model, optimizer, x, index):
        side.see(train_once(model, optimizer, x))

    assert trains_as_eager(body, make, rtol=1e-4, atol=1e-5).count == 1


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
def test_old_weight_norm_keeps_its_parameters_in_both_moves(csx):
    model = nn.utils.weight_norm(nn.Linear(8, 4))
    before = list(model.parameters())
    cstorch.compile(model)
    assert all(a is b and a.device.type == "csx" for a, b in zip(before, model.parameters()))
    model.to("cpu")
    assert all(a is b for a, b in zip(before, model.parameters()))
    assert model(torch.ones(1, 8)).device.type == "cpu"


# -- what is frozen, tied or assigned --------------------------------------------------------------------


def test_a_frozen_part_is_unfrozen_midway(csx):
    def train(side):
        model = small().to(side.device)
        model[0].requires_grad_(False)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, decay)
        step = side.trace(lambda x: side.see(train_once(model, optimizer, x)))
        for index, x in enumerate(batches(7, 4, 8)):
            if index == 3:
                model[0].requires_grad_(True)
            step(x)
            schedule.step()
        return model, optimizer

    assert same_as_eager(train).count == 2


def test_tied_parameters(csx):
    class Autoencoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.code, self.back = nn.Linear(8, 8), nn.Linear(8, 8)
            self.back.weight = self.code.weight
            self.drop = nn.Dropout(0.2)

        def forward(self, x):
            return self.back(self.drop(self.code(x).relu())) - F.linear(x, self.code.weight.t())

    trains_as_eager(lambda side, model, opt, x, i: side.see(train_once(model, opt, x)), Autoencoder)


@pytest.mark.parametrize("kind", ["assigned", "in place"])
def test_weights_that_the_step_clips_through_data(csx, kind):
    def body(side, model, optimizer, x, index):
        loss = train_once(model, optimizer, x)
        for p in model.parameters():
            if kind == "assigned":
                p.data = p.data.clamp(-0.2, 0.2)
            else:
                p.data.clamp_(-0.2, 0.2)
        side.see(loss)

    trains_as_eager(body, small)


# -- losses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["input", "interpolated", "weights"])
def test_a_gradient_penalty(csx, kind):
    def body(side, model, optimizer, x, index):
        optimizer.zero_grad()
        if kind == "interpolated":
            share = torch.rand(4, 1, device=x.device)
            x = share * x + (1 - share) * x.flip(0)
        if kind == "weights":
            loss = model(x).square().mean()
            gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        else:
            x = x.detach().requires_grad_(True)
            loss = model(x).square().mean()
            gradients = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        penalty = sum((g.flatten().norm() - 1).square() for g in gradients)
        (loss + 0.1 * penalty).backward()
        optimizer.step()
        side.see(loss, penalty)

    trains_as_eager(body, lambda: small(0.0 if kind != "interpolated" else 0.2), rtol=1e-4, atol=1e-5)


def test_distillation_from_a_frozen_teacher(csx):
    def train(side):
        teacher = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 4))
        teacher = teacher.to(side.device).eval().requires_grad_(False)
        student = small().to(side.device)
        optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, decay)

        @side.trace
        def step(x, temperature):
            with torch.no_grad():
                aim = (teacher(x) / temperature).softmax(-1)
            optimizer.zero_grad()
            made = (student(x) / temperature).log_softmax(-1)
            loss = F.kl_div(made, aim, reduction="batchmean") * temperature**2
            loss.backward()
            optimizer.step()
            side.see(loss)

        for index, x in enumerate(batches(6, 4, 8)):
            step(x, 4.0 - 0.5 * index)
            schedule.step()
        return student, teacher, optimizer

    assert same_as_eager(train).count == 1


def test_siamese_nets(csx):
    def body(side, model, optimizer, x, index):
        optimizer.zero_grad()
        near, far = model(x + 0.01), model(x.roll(1, 0))
        anchor = model(x)
        loss = F.triplet_margin_loss(anchor, near, far) + F.cosine_embedding_loss(
            anchor, far, -torch.ones(4, device=x.device)
        )
        loss.backward()
        optimizer.step()
        side.see(loss)

    trains_as_eager(body, mlp, rtol=1e-4, atol=1e-5)


def test_several_tasks_weighted_by_their_uncertainty(csx):
    class Tasks(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = small()
            self.heads = nn.ModuleDict({"a": nn.Linear(4, 3), "b": nn.Linear(4, 1)})
            self.log_variance = nn.ParameterDict({"a": torch.zeros(()), "b": torch.zeros(())})

        def forward(self, x):
            h = self.trunk(x)
            losses = {
                "a": F.cross_entropy(self.heads["a"](h), x[:, :3].argmax(-1)),
                "b": F.mse_loss(self.heads["b"](h)[:, 0], x.sum(-1)),
            }
            return sum(torch.exp(-self.log_variance[k]) * v + self.log_variance[k] for k, v in losses.items())

    def body(side, model, optimizer, x, index):
        optimizer.zero_grad()
        loss = model(x)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        side.see(loss)

    trains_as_eager(body, Tasks)


# -- state carried from step to step ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("carried", ["argument", "attribute"])
def test_truncated_backpropagation_through_time(csx, kind, carried):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.out, self.hidden = kind(8, 6), nn.Linear(6, 8), None

        def forward(self, x, hidden):
            h, hidden = self.cell(x.unsqueeze(1), hidden)
            return self.out(h).squeeze(1), hidden

    def detach(hidden):
        return tuple(h.detach() for h in hidden) if isinstance(hidden, tuple) else hidden.detach()

    def train(side):
        model = Net().to(side.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, decay)

        @side.trace
        def step(x, hidden):
            optimizer.zero_grad()
            y, hidden = model(x, model.hidden if carried == "attribute" else hidden)
            loss = F.mse_loss(y[:-1], x[1:])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            side.see(loss)
            if carried == "attribute":
                model.hidden = detach(hidden)
                return None
            return detach(hidden)

        hidden = None
        for x in batches(6, 4, 8):
            hidden = step(x, hidden)
            schedule.step()
        return model, optimizer

    assert same_as_eager(train).count == 2


def test_the_best_model_is_kept_as_a_deep_copy_between_steps(csx):
    def train(run):
        model = mlp().to(run.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)

        @run.trace
        def step(x):
            train_once(model, optimizer, x)

        for i, x in enumerate(batches(6, 3, 8)):
            if i == 3:
                best = copy.deepcopy(model)
            step(x)
        return best, optimizer

    assert same_as_eager(train).count == 1
